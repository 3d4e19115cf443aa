"""In which state a checkpoint was found, and what it would give after the repair: the loader has to confirm it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headscope.core.facts import CheckpointManifest, CheckpointState, ParameterStatus, WeightDiff
from headscope.core.facts.counting import counted
from headscope.core.facts.stored.states import PossibleModel
from headscope.errors import HeadscopeError

if TYPE_CHECKING:
    from headscope.core.checkpoints.states.wrapped_keys import Rekeying

    Rivals = list[tuple[Rekeying, WeightDiff]]
    from headscope.core.model.classes.model_request import Choice


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """States of a checkpoint; `change` says what the repair does, and `weights` is the diff after it.

    `weights` is None where there is nothing to repair, or where the repair cannot be read in memory.
    """

    states: tuple[CheckpointState, ...] = ()
    change: str = ""
    weights: WeightDiff | None = None


def diagnose(choice: Choice, manifest: CheckpointManifest, loaded: WeightDiff, take: tuple[str, ...] = ()) -> Diagnosis:
    """Diagnoses the states of a checkpoint that was loaded; a clean one is not loaded again.

    `take` names the models that are meant where several may be.
    """
    manifest = _of_one_model(choice, manifest, take)
    known = Diagnosis(manifest.states)
    if manifest.adapter is not None:
        return known
    readable, diff = manifest, loaded
    if manifest.repaired is not None:
        found = _load_diff(choice, manifest.repaired)
        if found is None:
            return known
        readable, diff = manifest.repaired, found
        known = Diagnosis(known.states, _words_on_repairs(known.states), found)
    return _of_peft(choice, readable, diff, known) or _with_keys_repaired(choice, readable, diff, known, take) or known


def _of_one_model(choice: Choice, manifest: CheckpointManifest, take: tuple[str, ...]) -> CheckpointManifest:
    """Chooses one model of a file that holds several: the one in `take`, or the one that fills most of the class.

    Returns the manifest with that model's state. If several models fill the class about as well, the state names these;
    if none fills it, all of them.
    """
    from headscope.core.checkpoints.manifest import in_state
    from headscope.core.checkpoints.states.place import Found

    if not manifest.states or not manifest.states[0].candidates:
        return manifest
    state = manifest.states[0].taking(take)
    if state.is_ambiguous:
        tried: dict[object, tuple[int, int]] = {}
        filled = tuple(_with_fill(choice, manifest, item, tried) for item in state.candidates)
        most = max(item.fills or 0 for item in filled)
        # One that fills less than half of what the best one fills is not meant to be this class.
        rivals = tuple(item for item in filled if item.fills is None or item.fills > most / 2)
        state = replace(state, candidates=filled).among(rivals if most else filled)
    return in_state(manifest, Found(state, None if state.is_ambiguous else state.candidates[0].headers or None))


def _with_fill(
    choice: Choice, manifest: CheckpointManifest, item: PossibleModel, tried: dict[object, tuple[int, int]]
) -> PossibleModel:
    """Measures how much of the class a candidate fills after its repair.

    Candidates with the same keys and shapes are loaded once; `tried` keeps the results.
    """
    from headscope.core.checkpoints.manifest import in_state
    from headscope.core.checkpoints.states.place import Found

    key = tuple((header.key, header.shape) for header in item.headers)
    part = in_state(manifest, Found(manifest.states[0], item.headers)).repaired if item.headers else None
    if part is None:
        return item
    if key not in tried:
        part = replace(part, states=(), repaired=None)
        diff = _load_diff(choice, part)
        found = Diagnosis() if diff is None else diagnose(choice, part, diff)
        diff = found.weights or diff
        # The keys of the candidate may fit the class in several ways again: the best of them counts.
        inside = [other.fills or 0 for state in found.states for other in state.candidates]
        tried[key] = (max(diff.loaded, *inside, 0), diff.total) if diff is not None else (0, 0)
    fills, total = tried[key]
    return replace(item, fills=fills, of_class=total)


def _words_on_repairs(states: tuple[CheckpointState, ...]) -> str:
    return f"the repair of {' and '.join(state.rule for state in states)} were done"


def _of_peft(choice: Choice, manifest: CheckpointManifest, diff: WeightDiff, known: Diagnosis) -> Diagnosis | None:
    """Diagnoses a PEFT model that was saved whole; None for other keys."""
    from headscope.core.checkpoints.states.peft_keys import find_peft_keys, state_of_peft_keys

    if not diff.unused:
        return None
    merged = find_peft_keys(manifest)
    found = _load_diff(choice, merged) if merged is not None else None
    if found is None or found.loaded <= diff.loaded:
        return None
    state = state_of_peft_keys(manifest, choice.cls.__name__)
    return _add_state(known, state, _words_on_repairs((*known.states, state)), found)


def _add_state(known: Diagnosis, state: CheckpointState, change: str, weights: WeightDiff) -> Diagnosis:
    """Adds a further state to a diagnosis.

    If the new state has no repair, no command can repair the earlier ones either: a person has to decide first.
    """
    if state.repair is not None:
        return Diagnosis((*known.states, state), change, weights)
    repairs = [item.repair and replace(item.repair, action=None, command="") for item in known.states]
    before = (replace(item, repair=repair) for item, repair in zip(known.states, repairs, strict=True))
    return Diagnosis((*before, state), known.change, known.weights)


def _load_diff(choice: Choice, manifest: CheckpointManifest) -> WeightDiff | None:
    from headscope.core.model.loading.loader import load_skeleton

    try:
        return load_skeleton(choice, manifest).diff
    except HeadscopeError:  # what the loader refuses is not a repair
        return None


def _with_keys_repaired(
    choice: Choice, manifest: CheckpointManifest, diff: WeightDiff, known: Diagnosis, take: tuple[str, ...]
) -> Diagnosis | None:
    """Diagnoses keys that load more once they are changed in memory; None if no change loads more.

    There is no repair if the best change gives one parameter two tensors, nor if several changes each read another
    model and none of them is taken.
    """
    from headscope.core.checkpoints.states.wrapped_keys import (
        find_rekeyings,
        rekeyed,
        rival_changes,
        state_of_wrapped_keys,
    )

    tried: list[tuple[Rekeying, WeightDiff, tuple[str, ...]]] = []
    for change in find_rekeyings(manifest, diff):
        changed = rekeyed(manifest, change)
        found = _load_diff(choice, changed)
        if found is not None and found.loaded > diff.loaded:
            tried.append((change, found, _given_twice(manifest, change, changed, found)))
    if not tried:
        return None
    # Most parameters loaded first; of equals, one that gives no parameter two tensors.
    tried.sort(key=lambda item: (-item[1].loaded, bool(item[2])))
    before = [state.rule for state in known.states]
    rivals = rival_changes((change, found) for change, found, _ in tried)
    if len(rivals) > 1:
        return _of_several(choice, manifest, rivals, known, take)
    change, best, twice = tried[0]
    words = f"{known.change} and {change.in_words()}" if known.change else change.in_words()
    return _add_state(known, state_of_wrapped_keys(manifest, change, before, twice, lost=best.lost), words, best)


def _of_several(
    choice: Choice, manifest: CheckpointManifest, rivals: Rivals, known: Diagnosis, take: tuple[str, ...]
) -> Diagnosis:
    """Diagnoses a checkpoint of which each of several changes reads another model: the one in `take`, or all."""
    from headscope.core.checkpoints.states import wrapped_keys as keys

    before, candidates, found = [state.rule for state in known.states], [], {}
    for change, whole in rivals:
        kept = keys.keys_of_one(manifest, change, whole)
        part = replace(manifest, tensors=tuple(item for item in manifest.tensors if item.key in kept))
        changed, beside = keys.rekeyed(part, change), keys.groups_beside(manifest, kept)
        diff = found[change.prefix] = _load_diff(choice, changed) or whole
        twice, without = _given_twice(part, change, changed, diff), tuple(beside)
        state = keys.state_of_wrapped_keys(manifest, change, before, twice, lost=diff.lost, without=without)
        left_out = tuple(f"{name} ({counted(count, 'tensor')})" for name, count in beside.items())
        candidates.append(
            PossibleModel(change.prefix, len(kept), diff.loaded, diff.total, left_out, state, changed.tensors)
        )
    state = replace(keys.SEVERAL, candidates=tuple(candidates)).taking(take)
    return _add_state(known, state, _words_on_repairs((*known.states, state)), found[state.candidates[0].take])


def _given_twice(
    manifest: CheckpointManifest, change: Rekeying, changed: CheckpointManifest, diff: WeightDiff
) -> tuple[str, ...]:
    """Lists the parameters that get two tensors by a change of keys."""
    from headscope.core.facts.stored.weights import names_given_twice

    return names_given_twice(change(item.key) for item in manifest.tensors) or _left_out(changed, diff)


def _left_out(manifest: CheckpointManifest, diff: WeightDiff) -> tuple[str, ...]:
    """Lists tensors that the loader skips silently because another tensor fills the same parameter."""
    keys = {item.name: item.checkpoint_keys for item in diff.parameters if item.status is ParameterStatus.LOADED}
    used = {key for several in keys.values() for key in several}
    left = {item.key for item in manifest.tensors} - used - set(diff.unused)
    return tuple(
        key
        for key in sorted(left)
        if key in keys or key.partition(".")[2] in keys or any(name.endswith(f".{key}") for name in keys)
    )
