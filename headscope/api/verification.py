"""`verify`: what a loaded model holds, against the stored bytes of its checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from os import PathLike
from pathlib import Path
from shutil import rmtree
from threading import Thread
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack, overload

from headscope.api.arguments import AdapterOption, CacheOptions, PlaceOptions, RuleOptions, use_case
from headscope.api.options import make_request, options_of, read_selection
from headscope.api.shown import Verified
from headscope.checks import Selection
from headscope.checks.loaded import judge_loaded
from headscope.errors import ExitCode, HeadscopeError, Unsupported, UsageError, error_of
from headscope.examination.in_memory import is_in_memory
from headscope.examination.request import Progress, Request
from headscope.facts.environment import tool_version
from headscope.facts.plain import restore, store
from headscope.facts.verification import Compared, LoadedModel, SavedModel

if TYPE_CHECKING:
    from torch import nn


class VerifyOptions(RuleOptions, PlaceOptions, AdapterOption, total=False):
    """The options of `verify`: its rules, and where the checkpoint to compare with is."""


@overload
def verify(
    model: nn.Module,
    against: str | PathLike[str],
    *,
    head: bool = False,
    progress: Progress | None = None,
    **options: Unpack[VerifyOptions],
) -> Verified: ...
@overload
def verify(
    model: str | PathLike[str],
    against: str | PathLike[str] | None = None,
    *,
    loader: str = "transformers",
    head: bool = False,
    num_labels: int | None = None,
    progress: Progress | None = None,
    **options: Unpack[VerifyOptions],
) -> Verified: ...
@use_case
def verify(
    model: nn.Module | str | PathLike[str],
    against: str | PathLike[str] | None = None,
    *,
    loader: str | None = None,
    head: bool = False,
    num_labels: int | None = None,
    progress: Progress | None = None,
    **options: Unpack[VerifyOptions],
) -> Verified:
    """Compares the tensors of a loaded model with the bytes that its checkpoint stores.

    Args:
        model: A model in memory, which stays untouched; or a checkpoint, which is loaded in a separate process.
        against: The checkpoint to compare with: everything that `inspect` takes except a snapshot (default: the
            checkpoint that `model` names).
        loader: What loads the model: `transformers` (the default), `peft`, `sentence-transformers`, `trl`, `setfit`, or
            `module:function`, which is called with the path or Hub ID. For a checkpoint only.
        head: Compare only the tensors of the head and those of an adapter. Default: every tensor and buffer.
        num_labels: Number of classes to load a checkpoint with (default: from an adapter's own head, or the config).
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
    place = {name: value for name, value in options.items() if name not in rules} | {"num_labels": num_labels}
    selection = read_selection(**rules, command="verify")
    if is_in_memory(model):
        if loader is not None:
            raise UsageError("loader is an option for a checkpoint, not for a model in memory", "leave it out")
        if num_labels is not None:
            raise UsageError("num_labels is an option for a checkpoint, not for a model in memory", "leave it out")
        if against is None:
            raise UsageError("verify needs the checkpoint that the model was loaded from", "give it as against")
        from headscope.examination.verification import compare_with_checkpoint

        request = make_request(against, place)
        return _result(compare_with_checkpoint(model, request, head_only=head, progress=progress), "memory", selection)
    chosen = loader or "transformers"
    source = make_request(model, place if against is None else options_of(CacheOptions, options))
    against = make_request(model if against is None else against, place)
    return _result(_loaded_apart(source, against, chosen, head_only=head, progress=progress), chosen, selection)


def _result(compared: Compared, loader: str, selection: Selection) -> Verified:
    return judged(compared.loaded, compared, selection, command="verify", loader=loader)


def judged(
    subject: LoadedModel | SavedModel, compared: Compared, selection: Selection, *, command: str, loader: str
) -> Verified:
    """What the selected rules say of a subject, beside the comparison that it comes from."""
    verdict, findings, ignored = judge_loaded(subject, selection, compared.gaps)
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
    )


def _loaded_apart(
    source: Request, against: Request, loader: str, *, head_only: bool, progress: Progress | None
) -> Compared:
    """The comparison made in a separate process: a loader may print, take all memory, or crash."""
    (progress or (lambda sentence: None))(f"loading with {loader} in a separate process")
    job = {"source": store(source), "against": store(against), "loader": loader, "head_only": head_only}
    with tempfile.TemporaryDirectory(prefix="headscope-") as folder:
        answer, said = Path(folder, "answer.json"), Path(folder, "stderr")
        command = [sys.executable, "-P", "-c", _CHILD, str(answer)]
        with said.open("wb") as stream:
            code = _ended_with(command, f"{json.dumps(job)}\n".encode(), stream, _environment(loader))
        if answer.is_file():
            return _answered(json.loads(answer.read_text(encoding="utf-8")))
        last = _end_of(said).strip().splitlines()[-1:]
    raise Unsupported(
        f"the process that loaded with {loader} {_ended(code)}{': ' + last[0] if last else ''}",
        "a signal 9 is often too little memory; load it by hand to see more",
    )


def _ended_with(command: list[str], job: bytes, stream: BinaryIO, environment: dict[str, str]) -> int:
    """The exit code of a process that gets a job as a line, and ends when this process does, however that ends."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stream, stderr=stream, env=environment) as child:
        assert child.stdin is not None  # Popen was given a pipe
        try:
            with suppress(BrokenPipeError):  # a process that never started: its exit code shows it
                child.stdin.write(job)
                child.stdin.flush()
            return child.wait()
        except BaseException:
            child.kill()
            raise


_CHILD = "import sys; from headscope.api.verification import answer; answer(sys.argv[1])"


def _environment(loader: str) -> dict[str, str]:
    """The child imports what this process imports, and a loader of the user's also from the current folder.

    That folder comes last, and for such a loader only: a checkpoint's folder may hold a file named as a library is.
    """
    here = [str(Path.cwd())] if ":" in loader else []
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*(path or str(Path.cwd()) for path in sys.path), *here])}


def _end_of(file: Path, most: int = 10_000) -> str:
    with file.open("rb") as stream:
        stream.seek(-min(most, file.stat().st_size), os.SEEK_END)
        return stream.read().decode("utf-8", errors="replace")


def _ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _answered(answer: dict[str, Any]) -> Compared:
    if "error" in answer:
        raise error_of(answer["error"]["code"])(answer["error"]["message"], answer["error"]["hint"])
    return restore(Compared, answer["compared"])


def answer(file: str) -> None:
    """The work of the separate process: reads the job from stdin and writes what it came to."""
    job = json.loads(_line_of_parent(Path(file).parent))
    try:
        compared = _load_and_compare(job)
        written: dict[str, Any] = {"compared": store(compared)}
    except HeadscopeError as err:
        written = {"error": {"code": err.code, "message": err.message, "hint": err.hint}}
    Path(file).write_text(json.dumps(written), encoding="utf-8")


def _line_of_parent(folder: Path) -> bytes:
    """The job. The pipe stays open as long as the parent runs: when it closes, this process ends too.

    A parent that was killed can't do that itself, and a loader may run for hours. The loader reads nothing from stdin.
    """
    pipe = os.fdopen(os.dup(0), "rb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    line = pipe.readline()

    def end_with_parent() -> None:
        pipe.read()
        rmtree(folder, ignore_errors=True)
        os._exit(ExitCode.INTERRUPTED)

    Thread(target=end_with_parent, daemon=True).start()
    return line


def _load_and_compare(job: dict[str, Any]) -> Compared:
    from headscope.examination.verification import compare_with_checkpoint, load_model

    source, against = restore(Request, job["source"]), restore(Request, job["against"])
    model = load_model(source, job["loader"])
    return compare_with_checkpoint(model, against, head_only=job["head_only"])
