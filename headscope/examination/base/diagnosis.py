"""In which state a checkpoint was found, and what it would give after the repair: the loader has to confirm it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headscope.errors import HeadscopeError
from headscope.facts import CheckpointManifest, CheckpointState, ParameterStatus, WeightDiff

if TYPE_CHECKING:
    from headscope.checkpoints.states.wrapped_keys import Rekeying
    from headscope.model.classes.model_request import Choice
    from headscope.model.loading.loader import Loaded


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The states of a checkpoint; `change` says what the repair does, and `weights` is the diff after it.

    `weights` is None where there is nothing to repair, or where the repair cannot be read in memory.
    """

    states: tuple[CheckpointState, ...] = ()
    change: str = ""
    weights: WeightDiff | None = None


def diagnose(choice: Choice, manifest: CheckpointManifest, loaded: Loaded) -> Diagnosis:
    """The states of a checkpoint that was loaded; for a clean one nothing is loaded again."""
    known = Diagnosis(manifest.states)
    if manifest.adapter is not None:
        return known
    readable, diff = manifest, loaded.diff
    if manifest.repaired is not None:
        found = _loaded(choice, manifest.repaired)
        if found is None:
            return known
        readable, diff = manifest.repaired, found
        known = Diagnosis(known.states, _done(known.states), found)
    return _of_peft(choice, readable, diff, known) or _with_keys_repaired(choice, readable, diff, known) or known


def _done(states: tuple[CheckpointState, ...]) -> str:
    return f"the repair of {' and '.join(state.rule for state in states)} were done"


def _of_peft(choice: Choice, manifest: CheckpointManifest, diff: WeightDiff, known: Diagnosis) -> Diagnosis | None:
    """The diagnosis of a PEFT model that was saved whole; None for other keys."""
    from headscope.checkpoints.states.peft_keys import find_peft_keys, state_of_peft_keys

    if not diff.unused:
        return None
    merged = find_peft_keys(manifest)
    found = _loaded(choice, merged) if merged is not None else None
    if found is None or found.loaded <= diff.loaded:
        return None
    state = state_of_peft_keys(manifest, choice.cls.__name__)
    return _joined(known, state, _done((*known.states, state)), found)


def _joined(known: Diagnosis, state: CheckpointState, change: str, weights: WeightDiff) -> Diagnosis:
    """What was known, and a further state; behind one without a repair, what the others need is left to a person."""
    if state.repair is not None:
        return Diagnosis((*known.states, state), change, weights)
    told = [item.repair and replace(item.repair, action=None, command="") for item in known.states]
    before = (replace(item, repair=repair) for item, repair in zip(known.states, told, strict=True))
    return Diagnosis((*before, state), known.change, known.weights)


def _loaded(choice: Choice, manifest: CheckpointManifest) -> WeightDiff | None:
    from headscope.model.loading.loader import load_skeleton

    try:
        return load_skeleton(choice, manifest).diff
    except HeadscopeError:  # what the loader refuses is not a repair
        return None


def _with_keys_repaired(
    choice: Choice, manifest: CheckpointManifest, diff: WeightDiff, known: Diagnosis
) -> Diagnosis | None:
    """The diagnosis where keys that are changed in memory load more than the stored ones.

    None where none do. There is no repair where the best change gives one parameter two tensors.
    """
    from headscope.checkpoints.states.wrapped_keys import find_rekeyings, rekeyed, state_of_wrapped_keys
    from headscope.facts.stored.weights import names_given_twice

    tried: list[tuple[tuple[int, bool, int], Rekeying, WeightDiff, tuple[str, ...]]] = []
    for change in find_rekeyings(manifest, diff):
        changed = rekeyed(manifest, change)
        found = _loaded(choice, changed)
        if found is not None and found.loaded > diff.loaded:
            twice = names_given_twice(change(item.key) for item in manifest.tensors) or _left_out(changed, found)
            tried.append(((found.loaded, not twice, -len(tried)), change, found, twice))
    if not tried:
        return None
    _, change, best, twice = max(tried, key=lambda item: item[0])
    words = f"{known.change} and {change.in_words()}" if known.change else change.in_words()
    before = [state.rule for state in known.states]
    return _joined(known, state_of_wrapped_keys(manifest, change, before, twice), words, best)


def _left_out(manifest: CheckpointManifest, diff: WeightDiff) -> tuple[str, ...]:
    """The tensors that the loader leaves out without a word, for another one of the same parameter."""
    keys = {item.name: item.checkpoint_keys for item in diff.parameters if item.status is ParameterStatus.LOADED}
    used = {key for several in keys.values() for key in several}
    left = {item.key for item in manifest.tensors} - used - set(diff.unused)
    return tuple(
        key
        for key in sorted(left)
        if key in keys or key.partition(".")[2] in keys or any(name.endswith(f".{key}") for name in keys)
    )
