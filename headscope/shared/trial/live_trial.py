"""The run of a model in memory: called on rows of random token IDs, images or sounds, in eval mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headscope.core.facts import Task
from headscope.core.facts.trial import RunTrial
from headscope.errors import HeadscopeError, Unsupported
from headscope.shared.trial.deciding import OFF, is_run_off
from headscope.shared.trial.encoded import Encoded
from headscope.shared.trial.inputs import replace_middle
from headscope.shared.trial.observing import RunSubject, error_words, observe

if TYPE_CHECKING:
    from torch import nn

    from headscope.core.source.live.live_model import LiveModel

_TURNS, _ROWS = 4, 4
"""Batches of random inputs, and the rows of each that are called one by one."""
_SPREAD = 1400
"""How many tokens of a vocabulary are tried, evenly spread: as many as 127 turns put into a row."""
_MOST_PARAMETERS = 3_000_000_000
"""Beyond, sixteen calls take minutes on a processor, and a training is waiting."""
_NOUNS = {Task.IMAGE_CLASSIFICATION: "image", Task.VIDEO_CLASSIFICATION: "video"}


def live_run(live_model: LiveModel, root: nn.Module) -> RunTrial | str:
    """Calls a model in memory on random inputs; says why it isn't called, if it can't be.

    `root` is what the caller gave: PEFT's own model puts a prompt before the inputs.

    Without a tokenizer, padding and texts are not looked at. Mode, random state and gradients stay as they are.
    """
    module: Any = live_model.unwrapped.module
    reason = _why_not_called(live_model, module)
    if reason:
        return reason
    try:
        rows = random_rows(module, live_model.task)
        if (caller := live_model.unwrapped.caller) is not None:
            rows = tuple(map(caller.with_task, rows))
        return _observe_rows(live_model, called_module(root, module), rows)
    except HeadscopeError as err:
        return err.message


def _observe_rows(live_model: LiveModel, called: Any, rows: Sequence[Encoded]) -> RunTrial:
    """Calls a model on rows, in eval mode, and observes it."""
    from headscope.core.trace.record.randomness import OwnRandomness

    noun = _NOUNS.get(live_model.task, "sound" if "audio" in live_model.task.value else "input")
    was_training = bool(live_model.unwrapped.module.training)
    subject = RunSubject(
        called, live_model.task, noun, rows, [noun] * len(rows), lambda some: some[0], has_batches=False,
        problem_type=getattr(live_model.unwrapped.module.config, "problem_type", None),
        changed=partial(_with_other_words, rows, live_model.unwrapped.module),
    )  # fmt: skip
    with in_eval_mode(called), OwnRandomness():
        return replace(observe(subject), in_train_mode=was_training)


def _with_other_words(rows: Sequence[Encoded], module: Any, row: Encoded, turn: int = 0) -> Encoded | None:
    """Replaces the token IDs between the first and the last ordinary one; None for other inputs.

    The new IDs are those of other rows; each further `turn` takes others of the vocabulary.
    """
    import torch

    from headscope.core.trace.batch.inputs import token_count
    from headscope.core.upstream.transformers import text_config_of

    ids, mask = row.get("input_ids"), row.get("attention_mask")
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2:
        return None
    special = {value for name, value in vars(text_config_of(module.config)).items() if name.endswith("_token_id")}
    own = ids[0].tolist()
    kept = [True] * len(own) if mask is None else mask[0].bool().tolist()
    ordinary = [at for at, token in enumerate(own) if kept[at] and token not in special]
    others = sorted({token for other in rows for token in other["input_ids"].flatten().tolist()} - {*own, *special})
    size = token_count(module) if turn and others else None
    if size is not None:
        others = [token for token in range(size) if token not in special]
    return replace_middle(row, ordinary, others, turn, step=max(len(others) // _SPREAD, 1))


def called_module(root: Any, module: Any) -> Any:
    """Gives the module to call: PEFT's own model, which puts prompts before the inputs, or the model inside."""
    return root if type(root).__name__.startswith("PeftModel") else module


def _why_not_called(live_model: LiveModel, module: Any) -> str:
    """Says why a model in memory isn't called; "" if it is."""
    if is_run_off():
        return f"{OFF} is set"
    if live_model.unwrapped.is_sharded or any(item.is_meta for item in module.parameters()):
        return "no process holds all of its weights"
    if sum(item.numel() for item in module.parameters()) > _MOST_PARAMETERS:
        return "it has more than 3 billion parameters"
    return "" if hasattr(module, "config") else "it has no configuration from which headscope could make inputs"


def random_rows(module: Any, task: Task) -> tuple[Encoded, ...]:
    """Makes random inputs of the task, of one row each. Raises Unsupported if headscope has none for the class."""
    from headscope.core.trace.batch.probe_batch import build_probe

    try:
        probes = [build_probe(module, task, turn=turn, with_labels=False) for turn in range(_TURNS)]
        return tuple(probe.one_row(at).inputs for probe in probes for at in range(min(_ROWS, probe.sizes.batch)))
    except HeadscopeError:
        raise
    except Exception as err:  # whatever a class of somebody raises
        raise Unsupported(f"headscope has no inputs for it: {error_words(err)}", "") from err


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Switches dropout off; puts every module back into its own mode afterwards."""
    # Each module's own mode: a frozen base model may be in eval mode inside of one that trains.
    modes = [(item, item.training) for item in module.modules()]
    module.train(False)
    try:
        yield
    finally:
        for item, mode in modes:
            item.training = mode
