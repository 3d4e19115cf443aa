"""Weights without a config.json: which classes they fit, and the code that writes the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headscope.errors import HeadscopeError, WithoutConfig
from headscope.facts import CheckpointState, Repair, StateKind, TensorHeader
from headscope.facts.counting import counted, few_of

if TYPE_CHECKING:
    from headscope.model.proposals import Proposal

_USUAL = ("model.safetensors", "pytorch_model.bin")


def with_proposals(error: WithoutConfig) -> HeadscopeError:
    """The error with the classes that the weights fit, ranked."""
    from headscope.checkpoints.states.rekeying import Rekeying, renamed_tensors
    from headscope.checkpoints.states.wrapped_keys import ANYWHERE
    from headscope.model.proposals import propose

    tensors = tuple(item for item in error.tensors if isinstance(item, TensorHeader))
    plain = renamed_tensors(tensors, Rekeying(tuple(ANYWHERE)))
    shared = _shared_prefix([item.key for item in plain])
    found: tuple[Proposal, ...] = ()
    for prefix in ("", *shared):
        found = max(found, propose(renamed_tensors(plain, Rekeying((), prefix))), key=_best)
    files = sorted({item.file for item in tensors})
    return _named(error, _state(found, files))


def _best(found: Sequence[Proposal]) -> int:
    return found[0].fits if found else 0


def _shared_prefix(keys: Sequence[str]) -> list[str]:
    """The first name of the keys where all have one."""
    first = {key.partition(".")[0] for key in keys}
    return [f"{first.pop()}."] if len(first) == 1 else []


def _named(error: WithoutConfig, state: CheckpointState) -> HeadscopeError:
    named = WithoutConfig(
        f"{error.message} {state.seen()}", state.repair.sentence if state.repair else error.hint, error.tensors
    )
    named.state = state
    return named


def _state(found: Sequence[Proposal], files: Sequence[str]) -> CheckpointState:
    evidence = tuple(
        f"{item.class_name} fits {item.fits:,} of {counted(item.total, 'key')} ({item.fits / max(item.total, 1):.0%})"
        for item in found
    )
    return CheckpointState(
        StateKind.NO_CONFIG,
        tool="",
        sentence="The weights have no config.json, which says what they are of.",
        evidence=evidence or ("no classification class of Transformers fits half of the keys",),
        repair=_repair(found[0], files) if found else None,
    )


def _repair(best: Proposal, files: Sequence[str]) -> Repair:
    sizes = {**dict(best.fields), **dict(best.open_fields)}
    written = ", ".join(f"{name}={value}" for name, value in sizes.items())
    lines = [
        f"from transformers import {best.config_class}",
        f"config = {best.config_class}({written})",
        f"config.architectures = [{best.class_name!r}]",
        "config.save_pretrained('.')",
    ]
    if len(files) == 1 and files[0] not in _USUAL:
        usual = _USUAL[0] if files[0].endswith(".safetensors") else _USUAL[1]
        lines += ["import shutil", f"shutil.copy({files[0]!r}, {usual!r})"]
    names = [name for name, _ in best.open_fields]
    guessed = f" No shape tells {' and '.join(names)}: set {'it' if len(names) == 1 else 'them'}." if names else ""
    return Repair(
        f"If it is a {best.class_name}, write its configuration; the sizes are those of the tensors."
        f"{guessed}{_on_misfits(best)}",
        "\n".join(lines),
    )


def _on_misfits(best: Proposal) -> str:
    """What the class with these sizes still does not load, as a sentence; "" where it loads everything."""
    found = [(best.lacking, "gets no weights for"), (best.left, "does not load")]
    said = [f"{words} {few_of(names)}" for names, words in found if names]
    return f" With these settings the class {' and '.join(said)}: correct the configuration first." if said else ""
