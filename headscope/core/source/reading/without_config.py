"""Weights without a config.json: which classes they fit, and the code that writes the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headscope.core.facts import CheckpointState, Repair, StateKind, TensorHeader
from headscope.core.facts.counting import counted, list_of
from headscope.errors import HeadscopeError, WithoutConfig

if TYPE_CHECKING:
    from headscope.core.model.classes.proposals import Proposal

_SHOWN, _NAMED, _MOST_ASSUMED = 3, 12, 30
_USUAL = ("model.safetensors", "pytorch_model.bin")


def with_proposals(error: WithoutConfig) -> HeadscopeError:
    """Adds the classes that the weights fit, ranked, to the error, and code for a configuration if one is left."""
    from headscope.core.checkpoints.states.wrapped_keys import ANYWHERE, Rekeying, renamed_tensors
    from headscope.core.model.classes.proposals import fitting_classes

    tensors = tuple(item for item in error.tensors if isinstance(item, TensorHeader))
    plain = renamed_tensors(tensors, Rekeying(tuple(ANYWHERE)))
    first = {item.key.partition(".")[0] for item in plain}
    # A prefix that all keys share may be a wrapper's, so the classes are tried without it as well.
    shared = [f"{first.pop()}."] if len(first) == 1 else []
    read: tuple[TensorHeader, ...] = ()
    found: tuple[Proposal, ...] = ()
    for prefix in ("", *shared):
        renamed = renamed_tensors(plain, Rekeying((), prefix))
        fitting = fitting_classes(renamed)
        if fitting and (not found or fitting[0].fits > found[0].fits):
            found, read = fitting, renamed
    files = sorted({item.file for item in tensors})
    are_own = {item.key for item in read} == {item.key for item in tensors}
    return _with_state(error, _state_of_proposals(found, _choose_proposal(found, read), files, are_own=are_own))


def _choose_proposal(found: Sequence[Proposal], tensors: Sequence[TensorHeader]) -> Proposal | str:
    """Chooses the class that loads every tensor, unless another one does so and computes something else.

    Returns the reason as a text if no class can be chosen. Settings that no shape tells have the default of each class,
    so its scores may differ from those of the training.
    """
    from headscope.core.model.classes.proposals import with_sizes

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
    """True if two classes give the same scores for the same weights; False if that cannot be tried."""
    import torch
    import transformers

    from headscope.core.model.classes.catalog import task_of_class
    from headscope.core.model.classes.proposals import build_with_named_numbers, config_of
    from headscope.core.model.quiet import quiet
    from headscope.core.trace.batch.probe_batch import build_probe
    from headscope.core.trace.record.execution import run_unrecorded

    task, of_other = task_of_class(one.class_name), task_of_class(other.class_name)
    if task is None or task is not of_other:
        return False
    try:
        models = [
            build_with_named_numbers(getattr(transformers, item.class_name), config_of(item)) for item in (one, other)
        ]
        inputs = build_probe(models[0], task).inputs
        with quiet():
            first, second = (run_unrecorded(model, inputs).logits for model in models)
        return bool(first.isfinite().all()) and torch.allclose(first, second, rtol=1e-4, atol=1e-5)
    except Exception:  # whatever foreign code raises on dummy inputs: then it is not known
        return False


def _with_state(error: WithoutConfig, state: CheckpointState) -> HeadscopeError:
    named = WithoutConfig(
        f"{error.message} {state.seen()}", state.repair.advice() if state.repair else error.hint, error.tensors
    )
    named.state, named.reference = state, error.reference
    return named


def _state_of_proposals(
    found: Sequence[Proposal], offered: Proposal | str, files: Sequence[str], *, are_own: bool
) -> CheckpointState:
    shown = found if isinstance(offered, str) else [item for item in found if item.class_name == offered.class_name]
    evidence = tuple(
        f"{item.class_name} fits {item.fits:,} of {counted(item.total, 'key')} ({item.fits / max(item.total, 1):.0%})"
        for item in shown[:_SHOWN]
    )
    if isinstance(offered, str):
        evidence = (*evidence, offered) if offered else ()
    return CheckpointState(
        StateKind.NO_CONFIG,
        tool="",
        sentence="The weights have no config.json, which says what they are of.",
        evidence=evidence or ("no classification class whose source names them fits half of the keys",),
        repair=None if isinstance(offered, str) else _repair_with_config(offered, files, are_own=are_own),
    )


_ONCE_RENAMED = ", once its keys are those of the class (inspect the result, which says how)"
_UNTRIED = " Others may count too: no small model of the class could be run to try them."


@dataclass(frozen=True, slots=True)
class WriteConfig:
    """Writes a configuration of a class: `fields` are the sizes of the tensors, no shape tells what is `assumed`.

    `file` is copied to a name that from_pretrained looks for; "" where it has one.
    """

    class_name: str
    config_class: str
    fields: tuple[tuple[str, Any], ...]
    assumed: tuple[tuple[str, Any], ...]
    file: str

    def code(self) -> str:
        """See `RepairAction`."""
        return self.code_with({})

    def options(self) -> str:
        """See `RepairAction`."""
        return " --config FOLDER_OR_ID"

    def code_with(self, settings: Mapping[str, Any]) -> str:
        """Writes the code with `settings` of the reader instead of assumed ones, or instead of sizes."""
        assumed, fields = dict(self.assumed) | dict(settings), [item for item in self.fields if item[0] not in settings]
        lines = [
            f"from transformers import {self.config_class}",
            "# Defaults of the class: they change the scores, and no shape tells them.",
            f"assumed = {assumed!r}",
            f"config = {self.config_class}({''.join(f'{name}={value}, ' for name, value in fields)}**assumed)",
            f"config.architectures = [{self.class_name!r}]",
            "config.save_pretrained('.')",
        ]
        if self.file:
            # from_pretrained looks for these names only.
            usual = _USUAL[0] if self.file.endswith(".safetensors") else _USUAL[1]
            lines += ["import shutil", f"shutil.copy({self.file!r}, {usual!r})"]
        return "\n".join(lines)


def _repair_with_config(best: Proposal, files: Sequence[str], *, are_own: bool) -> Repair:
    from headscope.core.checkpoints.states.place import repair_by
    from headscope.core.source.reading.unseen_settings import settings_without_shape

    counting = settings_without_shape(best)
    assumed = dict(best.open_fields) | (counting or {})
    named = f": {list_of(list(assumed), _MOST_ASSUMED)}" if assumed else ""
    file = files[0] if len(files) == 1 and files[0] not in _USUAL else ""
    return repair_by(
        f"This is not proven: write a configuration of {best.class_name}, which loads every tensor"
        f"{'' if are_own else _ONCE_RENAMED}; the sizes are those of the tensors. Every setting that no shape tells has"
        f" the class's default{named}. Set these settings as in your training script, or the scores differ."
        f"{_UNTRIED if counting is None else ''}",
        WriteConfig(best.class_name, best.config_class, best.fields, tuple(assumed.items()), file),
    )
