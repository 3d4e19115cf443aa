"""Weights without a config.json: which classes they fit, and the code that writes the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headscope.errors import HeadscopeError, WithoutConfig
from headscope.facts import CheckpointState, Repair, StateKind, TensorHeader
from headscope.facts.counting import counted, list_of

if TYPE_CHECKING:
    from headscope.model.classes.proposals import Proposal

_SHOWN, _NAMED = 3, 12
_USUAL = ("model.safetensors", "pytorch_model.bin")


def with_proposals(error: WithoutConfig) -> HeadscopeError:
    """The error with the classes that the weights fit, ranked, and a repair if one class is proven."""
    from headscope.checkpoints.states.rekeying import Rekeying, renamed_tensors
    from headscope.checkpoints.states.wrapped_keys import ANYWHERE
    from headscope.model.classes.proposals import fitting_classes

    tensors = tuple(item for item in error.tensors if isinstance(item, TensorHeader))
    plain = renamed_tensors(tensors, Rekeying(tuple(ANYWHERE)))
    shared = _shared_prefix([item.key for item in plain])
    read: tuple[TensorHeader, ...] = ()
    found: tuple[Proposal, ...] = ()
    for prefix in ("", *shared):
        renamed = renamed_tensors(plain, Rekeying((), prefix))
        fitting = fitting_classes(renamed)
        if fitting and (not found or fitting[0].fits > found[0].fits):
            found, read = fitting, renamed
    files = sorted({item.file for item in tensors})
    return _named(error, _state(found, _proven(found, read), files))


def _proven(found: Sequence[Proposal], tensors: Sequence[TensorHeader]) -> Proposal | str:
    """The class that loads every tensor, if it is alone or all such classes compute the same; otherwise the reason.

    Settings that no shape tells have the default of each class.
    """
    from headscope.model.classes.proposals import with_sizes

    alike = [item for item in found if item.is_alike]
    whole: list[Proposal] = []
    for item in alike:
        sized = with_sizes(item, tensors)
        if sized.is_whole and whole and not _compute_the_same(whole[0], sized):
            names = list_of([other.class_name for other in alike], _NAMED)
            return f"{names} have the same keys and compute different scores: the weights don't tell which it is"
        whole += [sized] if sized.is_whole else []
    if whole:
        return whole[0]
    return "no class loads every tensor with sizes that headscope infers from the shapes" if found else ""


def _compute_the_same(one: Proposal, other: Proposal) -> bool:
    """Whether two classes give the same scores for the same weights; False where that cannot be tried."""
    import torch

    from headscope.model.classes.catalogue import task_of_class
    from headscope.model.classes.proposals import build_proposed
    from headscope.model.quiet import quiet
    from headscope.trace.batch.probe_batch import build_probe
    from headscope.trace.record.execution import run_unrecorded

    task, of_other = task_of_class(one.class_name), task_of_class(other.class_name)
    if task is None or task is not of_other:
        return False
    try:
        models = [build_proposed(item) for item in (one, other)]
        inputs = build_probe(models[0], task).inputs
        with quiet():
            first, second = (run_unrecorded(model, inputs).logits for model in models)
        return bool(first.isfinite().all()) and torch.allclose(first, second, rtol=1e-4, atol=1e-5)
    except Exception:  # whatever foreign code raises on dummy inputs: then it is not known
        return False


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


def _state(found: Sequence[Proposal], proven: Proposal | str, files: Sequence[str]) -> CheckpointState:
    shown = found if isinstance(proven, str) else [item for item in found if item.class_name == proven.class_name]
    evidence = tuple(
        f"{item.class_name} fits {item.fits:,} of {counted(item.total, 'key')} ({item.fits / max(item.total, 1):.0%})"
        for item in shown[:_SHOWN]
    )
    if isinstance(proven, str):
        evidence = (*evidence, proven) if proven else ()
    return CheckpointState(
        StateKind.NO_CONFIG,
        tool="",
        sentence="The weights have no config.json, which says what they are of.",
        evidence=evidence or ("no classification class whose source names them fits half of the keys",),
        repair=None if isinstance(proven, str) else _repair(proven, files),
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
        f"Write the configuration of {best.class_name}, which loads every tensor; the sizes are those of the tensors."
        f"{guessed} Every other setting has its default, such as the activation: set it as it was in training.",
        "\n".join(lines),
    )
