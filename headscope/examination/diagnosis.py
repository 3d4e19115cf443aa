"""In which state a checkpoint was found, and what it would give after the repair: the loader has to confirm it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headscope.errors import HeadscopeError
from headscope.facts import CheckpointManifest, CheckpointState, WeightDiff

if TYPE_CHECKING:
    from headscope.model.loading import Loaded
    from headscope.model.model_request import Choice


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
    return _with_keys_repaired(choice, manifest, loaded.diff) or known


def _with_keys_repaired(choice: Choice, manifest: CheckpointManifest, diff: WeightDiff) -> Diagnosis | None:
    """The diagnosis where keys that are changed in memory load more than the stored ones; None where none do."""
    from headscope.checkpoints.states.rekeying import rekeyed
    from headscope.checkpoints.states.wrapped_keys import find_rekeyings, state_of_wrapped_keys
    from headscope.model.loading import load_skeleton

    tried = []
    for change in find_rekeyings(manifest, diff):
        changed = rekeyed(manifest, change)
        if changed is None:
            continue
        try:
            tried.append((change, load_skeleton(choice, changed).diff))
        except HeadscopeError:  # keys that the loader refuses are no repair
            continue
    if not tried:
        return None
    change, best = max(tried, key=lambda pair: pair[1].loaded)
    if best.loaded <= diff.loaded:
        return None
    state = state_of_wrapped_keys(manifest, change)
    return Diagnosis((*manifest.states, state), change.in_words(), best)
