"""The run of a model in memory: called on rows of random token IDs, images or sounds, in eval mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headscope.errors import HeadscopeError
from headscope.examination.trial.deciding import OFF, is_run_off
from headscope.examination.trial.observing import RunSubject, error_words, observe
from headscope.facts import Task
from headscope.facts.trial import RunTrial

if TYPE_CHECKING:
    from torch import nn

    from headscope.examination.memory.live import LiveModel

_TURNS, _ROWS = 4, 4
"""Batches of random inputs, and the rows of each that are called one by one."""
_MOST_PARAMETERS = 3_000_000_000
"""Beyond, sixteen calls take minutes on a processor, and a training is waiting."""
_NOUNS = {Task.IMAGE_CLASSIFICATION: "image", Task.VIDEO_CLASSIFICATION: "video"}


def live_run(seen: LiveModel, root: nn.Module) -> RunTrial | str:
    """What a model in memory does when it is called; why it isn't called, where it can't be.

    `root` is what the caller gave: PEFT's own model puts a prompt before the inputs.

    Without a tokenizer, padding and texts are not looked at. Mode, random state and gradients stay as they are.
    """
    from headscope.trace.record.randomness import OwnRandomness

    module: Any = seen.unwrapped.module
    reason = _why_not(seen, module)
    if reason:
        return reason
    try:
        rows: list[Mapping[str, Any]] = list(random_rows(module, seen.task))
        if (caller := seen.unwrapped.caller) is not None:
            rows = [caller.with_task(row) for row in rows]
    except HeadscopeError as err:
        return err.message
    except Exception as err:  # whatever a class of somebody raises
        return f"headscope has no inputs for it: {error_words(err)}"
    noun = _NOUNS.get(seen.task, "sound" if "audio" in seen.task.value else "input")
    called = called_module(root, module)
    subject = RunSubject(
        called, seen.task, noun, rows, [noun] * len(rows), lambda some: some[0], has_batches=False,
        takes_offset=getattr(module.config, "problem_type", None) in (None, "single_label_classification"),
    )  # fmt: skip
    was_training = bool(module.training)
    with in_eval_mode(called), OwnRandomness():
        return replace(observe(subject), in_train_mode=was_training)


def called_module(root: Any, module: Any) -> Any:
    """What is called of a model: PEFT's own model, which puts prompts before the inputs, or the model inside."""
    return root if type(root).__name__.startswith("PeftModel") else module


def _why_not(seen: LiveModel, module: Any) -> str:
    """Why a model in memory isn't called; "" where it is."""
    if is_run_off():
        return f"{OFF} is set"
    if seen.unwrapped.is_sharded or any(item.is_meta for item in module.parameters()):
        return "no process holds all of its weights"
    if sum(item.numel() for item in module.parameters()) > _MOST_PARAMETERS:
        return "it has more than 3 billion parameters"
    return "" if hasattr(module, "config") else "it has no configuration from which headscope could make inputs"


def random_rows(module: Any, task: Task) -> Iterator[Mapping[str, Any]]:
    """Random inputs of the task, one at a time."""
    from headscope.trace.batch.probe_batch import build_probe

    for turn in range(_TURNS):
        probe = build_probe(module, task, turn=turn, with_labels=False)
        for at in range(min(_ROWS, probe.sizes.batch)):
            yield probe.one_row(at).inputs


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Dropout off; every module is in its own mode again afterwards."""
    modes = [(item, item.training) for item in module.modules()]
    module.train(False)
    try:
        yield
    finally:
        for item, mode in modes:
            item.training = mode
