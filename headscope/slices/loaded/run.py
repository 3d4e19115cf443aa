"""`verify`: what a loaded model holds, against the stored bytes of its checkpoint."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, overload

from headscope.checks.given import read_selection
from headscope.checks.options import RuleOptions
from headscope.checks.rules import Selection
from headscope.checks.rules.judgment import weigh
from headscope.checks.trial_process import beside_fresh_load
from headscope.core.facts.environment import tool_version
from headscope.core.source.request import Progress, Request, is_in_memory
from headscope.core.upstream.loaders import check_loader
from headscope.core.workers import Worker, WorkerEnded
from headscope.errors import HeadscopeError, Unsupported, UsageError
from headscope.shared.loaded.facts import LoadedModel, ModelComparison, ScoreComparison, VerifyResult
from headscope.shell.options.calls import use_case
from headscope.shell.options.checkpoint import CacheOptions, ModelClassOption
from headscope.shell.shown import Shown
from headscope.shell.values import make_request, options_of
from headscope.slices.loaded.options import ModuleVerification, VerifyOptions

if TYPE_CHECKING:
    from torch import nn

_MOST_STDERR_BYTES = 10_000


class Verified(Shown, VerifyResult):
    """The result of `verify`."""

    __slots__ = ()


@overload
def verify(
    model: nn.Module,
    against: str | PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[ModuleVerification],
) -> Verified: ...
@overload
def verify(
    model: str | PathLike[str],
    against: str | PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
    **options: Unpack[VerifyOptions],
) -> Verified: ...
@use_case
def verify(
    model: nn.Module | str | PathLike[str],
    against: str | PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
    **options: Unpack[VerifyOptions],
) -> Verified:
    """Compares the tensors of a loaded model with the bytes that its checkpoint stores.

    Args:
        model: A model in memory, which stays untouched; or a checkpoint, which is loaded in a separate process.
        against: The checkpoint to compare with: everything that `inspect` takes except a snapshot (default: the
            checkpoint that `model` names).
        options: See `VerifyOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        The verdict, the findings, and each tensor with its status and its largest error.

    Raises:
        UsageError: An option is unknown, has an invalid value, or doesn't apply to this kind of model.
        HeadscopeError: The checkpoint can't be read, or the loader fails.

    Example:
        >>> import headscope
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> model = BertForSequenceClassification(BertConfig(hidden_size=24, num_hidden_layers=1, vocab_size=99))
        >>> model.save_pretrained("saved")
        >>> headscope.verify(model, "saved").verdict
        <Verdict.PASSED: 'passed'>
        >>> model.classifier.reset_parameters()
        >>> headscope.verify(model, "saved").findings[0].id
        'HS701'
    """
    rules = options_of(RuleOptions, options)
    loader, head = options.pop("loader", None), options.pop("head", False)
    place = {name: value for name, value in options.items() if name not in rules}
    selection = read_selection(**rules, command="verify")
    if is_in_memory(model):
        if loader is not None:
            raise UsageError("loader is an option for a checkpoint, not for a model in memory", "leave it out")
        for name in ("num_labels", "model_class"):
            if options.get(name) is not None:
                raise UsageError(f"{name} is an option for a checkpoint, not for a model in memory", "leave it out")
        if against is None:
            raise UsageError("verify needs the checkpoint that the model was loaded from", "give it as against")
        from headscope.shared.loaded.verification import compare_with_checkpoint

        request = make_request(against, place)
        compared = compare_with_checkpoint(model, request, head_only=head, progress=progress)
        if not head:
            (progress or (lambda sentence: None))("comparing scores with a fresh load")
            compared = with_scores(compared, beside_fresh_load(model, request))
        return judged(compared, selection, command="verify", loader="memory")
    if loader is not None:
        check_loader(loader)
    loading = options_of(ModelClassOption, options)
    source = make_request(model, place if against is None else options_of(CacheOptions, options) | loading)
    stored = make_request(model if against is None else against, place)
    compared, used = _load_in_process(source, stored, loader, head_only=head, progress=progress)
    return judged(compared, selection, command="verify", loader=used)


def judged(compared: ModelComparison, selection: Selection, *, command: str, loader: str) -> Verified:
    """Judges what was compared by the selected rules, and joins the findings with the comparison."""
    subject = compared.subject
    found = [finding for rule in selection.rules for finding in rule.judge(rule, subject)]
    verdict, findings, ignored = weigh(found, selection, subject.reference, is_open=bool(compared.gaps))
    return Verified(
        tool_version=tool_version(),
        command=command,
        reference=subject.reference,
        loader=loader,
        model=subject.class_name,
        verdict=verdict,
        tensors=subject.tensors,
        findings=findings,
        ignored=ignored,
        notes=compared.notes,
        not_determined=compared.gaps,
        rules=tuple(rule.id for rule in selection.rules),
        scope=compared.scope,
        bytes_read=compared.bytes_read,
        scores=subject.scores,
        unplaced=subject.unplaced if isinstance(subject, LoadedModel) else (),
        saved_class=compared.saved_class,
    )


def with_scores(compared: ModelComparison, scores: ScoreComparison) -> ModelComparison:
    """Adds the comparison of scores to that of tensors, and a sentence if scores could not be compared."""
    subject = replace(compared.subject, scores=scores)
    return replace(compared, subject=subject, notes=(*compared.notes, *notes_on_scores(scores)))


def notes_on_scores(scores: ScoreComparison) -> tuple[str, ...]:
    """Gives the notes on a comparison of scores: why there is none, and the mode of the model."""
    found = [f"scores were not compared: {scores.reason}"] if scores.reason else []
    if scores.in_train_mode and not scores.reason:
        found.append("the model is in train mode; its scores were compared in eval mode")
    return tuple(found)


def _load_in_process(
    source: Request, against: Request, loader: str | None, *, head_only: bool, progress: Progress | None
) -> tuple[ModelComparison, str]:
    """Loads and compares in a separate process; gives the comparison and the loader that was used."""
    # A loader may print, take all memory, or crash.
    by = f" with {loader}" if loader else ""
    (progress or (lambda sentence: None))(f"loading{by} in a separate process")
    with tempfile.TemporaryFile() as said, Worker(stderr=said) as worker:
        try:
            return worker.call(_load_and_compare, source, against, loader, head_only)
        except HeadscopeError:
            raise
        except WorkerEnded as err:
            ended = f"was killed by signal {-err.code}" if err.code < 0 else f"ended with exit code {err.code}"
            # The last line on stderr is often the cause; a loader may have printed much before it.
            said.seek(-min(_MOST_STDERR_BYTES, os.fstat(said.fileno()).st_size), os.SEEK_END)
            words = said.read().decode("utf-8", errors="replace").strip().splitlines()[-1:]
        except Exception as err:
            ended, words = "failed", [f"{type(err).__name__}: {err}"]
    raise Unsupported(
        f"the process that loaded{by} {': '.join((ended, *words))}",
        "a signal 9 is often too little memory; load it by hand to see more",
    )


def _load_and_compare(
    source: Request, against: Request, loader: str | None, head_only: bool
) -> tuple[ModelComparison, str]:
    """Loads a model and compares it: the work of the separate process."""
    from headscope.shared.loaded.verification import compare_with_checkpoint, load_model_with

    # The user's own loader may be a file in the current folder. The folder comes last in the path, and for such a
    # loader only: in the folder of a checkpoint, a file may have the name of a library.
    if loader and ":" in loader:
        sys.path.append(str(Path.cwd()))
    model, used = load_model_with(source, loader)
    compared = compare_with_checkpoint(model, against, head_only=head_only)
    if loader is None or head_only:  # a fresh load would be the same load
        return compared, used
    return with_scores(compared, beside_fresh_load(model, against)), used
