"""Process that runs an engine: its request and answer are files, and what it prints stays in a third."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from headscope.errors import Unsupported, UsageError
from headscope.shared.serving.answers import Answer, Answers

if TYPE_CHECKING:
    from headscope.shared.serving.explaining import Scores

RUNNERS, _NODE = Path(__file__).parent / "runners", ".mjs"
"""The folder of the scripts that run engines, and the suffix of those for Node.js."""
_SECONDS = 600.0
"""For all of an engine: vLLM takes a minute to start, an export to ONNX as long."""
_MOST_BYTES, _MOST_SHOWN = 50_000_000, 300
"""Of an answer, and characters of a message."""


@dataclass(frozen=True, slots=True)
class EngineInput:
    """Text, or pair, with its tokens: without padding, and with segment IDs where the model takes them."""

    text: str
    pair: str | None = None
    ids: tuple[int, ...] | None = None
    types: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class InputBatch:
    """Inputs that are run together; `padding` is the side, None for one at a time. `raw` requests logits."""

    name: str
    items: tuple[EngineInput, ...]
    raw: bool = True
    padding: str | None = None


@dataclass(frozen=True, slots=True)
class BatchScores:
    """Scores that an engine gave for a batch: a row for each text or token, or why there is none.

    `raw`: they are logits. `is_finite` is False if the error is that they were not all finite.
    """

    scores: Scores
    raw: bool
    error: str = ""
    is_finite: bool = True


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """Answer of an engine, batch by batch; `error` is why it doesn't load the checkpoint.

    `dtype` is the coarsest that it computes in, though float32 was requested.
    """

    version: str
    batches: tuple[BatchScores, ...]
    error: str = ""
    notes: tuple[str, ...] = ()
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Resolution:
    """Resolution of a configuration by an engine; `error` is why it refuses it, and then the other fields are empty."""

    version: str
    error: str
    implementation: str
    """The engine's class for it."""
    positions: str
    """Where that pools."""
    dtype: str
    """The precision that it chooses by default on this machine."""


ASKED = ("vllm",)
"""The engines that resolve a configuration without weights."""


def runner_names() -> tuple[str, ...]:
    """Lists the engines that can be run, in order."""
    return tuple(sorted(_runner_scripts()))


def _runner_scripts() -> dict[str, Path]:
    return {path.stem.replace("_", "-"): path for path in RUNNERS.iterdir() if path.suffix in (".py", _NODE)}


def find_runner(engine: str) -> Path:
    """Gives the script that runs an engine. Raises UsageError for an engine that has none."""
    scripts = _runner_scripts()
    if engine not in scripts:
        raise UsageError(f"headscope can't run {engine}", f"engines that it can run: {', '.join(sorted(scripts))}")
    return scripts[engine]


def run_engine(
    engine: str, folder: Path, scratch: Path, batches: Sequence[InputBatch], python: str | None = None
) -> EngineAnswer:
    """Runs an engine on a checkpoint's folder, and reads the scores that it gives for batches.

    `python` is the interpreter that has the engine: by default that of this process, for a script of Node.js `node`.
    Raises UsageError for an engine without a script or an interpreter that isn't there, and Unsupported where the
    engine can't be run: that says nothing about the checkpoint.
    """
    body = {"folder": str(folder), "scratch": str(scratch / "work"), "batches": [asdict(batch) for batch in batches]}
    return read_answer(_answer_file(engine, folder, scratch, body, python), batches, engine)


def resolve_with_engine(engine: str, config: Mapping[str, Any], python: str | None = None) -> Resolution:
    """Lets an engine resolve a configuration, without weights. Raises as `run_engine`; `ASKED` lists those that can."""
    with TemporaryDirectory(prefix="headscope-") as name:
        folder = Path(name) / "model"
        folder.mkdir()
        folder.joinpath("config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
        answer = _answer_file(engine, folder, Path(name), {"folder": str(folder), "resolve": True}, python)
        try:
            found = json.loads(answer.read_text(encoding="utf-8"))
            return Resolution(**{field.name: _one_message(found[field.name]) for field in fields(Resolution)})
        except (ValueError, KeyError, OSError, RecursionError) as err:
            raise Unsupported(f"the answer of {engine} is not of the form expected: {_one_message(err)}", "") from err


def _answer_file(engine: str, folder: Path, scratch: Path, body: Mapping[str, Any], python: str | None) -> Path:
    """Runs the engine's script for a request, and gives the file that it wrote. Raises as `run_engine`."""
    script = find_runner(engine)
    command = python or ("node" if script.suffix == _NODE else sys.executable)
    found = shutil.which(command)
    if found is None:
        kind = UsageError if python else Unsupported
        raise kind(f"{command} is not a program that can be run", "give the interpreter that has the engine: --python")
    if script.suffix == _NODE and not (folder / "onnx" / "model.onnx").is_file():
        with (scratch / "export.txt").open("wb") as output:
            _run_to_its_end([sys.executable, str(RUNNERS / "onnx_runtime.py"), str(folder)], output, scratch)
    request, answer, said = (scratch / name for name in ("request.json", "answer.json", "said.txt"))
    answer.unlink(missing_ok=True)
    scratch.joinpath("work").mkdir(exist_ok=True)
    request.write_text(json.dumps(body), encoding="utf-8")
    with said.open("wb") as output:
        # The engine is run in another folder, and resolving a link would leave its virtual environment.
        _run_to_its_end([str(Path(found).absolute()), str(script), str(request), str(answer)], output, scratch)
    if not answer.is_file():
        raise Unsupported(f"{engine} could not be run: {_last_line(said)}", "name the Python that has it: --python")
    return answer


def ask_engine(
    engine: str, folder: Path, texts: Sequence[tuple[str, ...]], *, raw: bool, python: str | None
) -> Answers:
    """Runs an engine on texts, each alone, with a checkpoint's folder, which is left unchanged.

    Raises as `run_engine`, and Unsupported where the engine doesn't take the checkpoint or the texts.
    """
    items = tuple(EngineInput(text[0], text[1] if len(text) > 1 else None) for text in texts)
    with TemporaryDirectory(prefix="headscope-") as name:
        model = Path(name) / "model"
        model.mkdir()
        for file in folder.iterdir():  # an engine may write beside them
            (model / file.name).symlink_to(file.resolve())
        answer = run_engine(engine, model, Path(name), [InputBatch("texts", items, raw)], python)
    error = answer.error or answer.batches[0].error
    if error:
        raise Unsupported(f"{engine} {answer.version} gives no scores: {error}", "see what the engine says of it")
    found = answer.batches[0]
    scores = tuple(Answer(tuple(row)) for row in found.scores.tolist())
    notes = ("float32 was requested of the engine", *answer.notes)
    return Answers(engine, answer.version, "process", raw and found.raw, scores, notes, answer.dtype, is_run=True)


def _run_to_its_end(command: list[str], output: Any, scratch: Path) -> None:
    """Runs a command to its end, or kills it with all that it started."""
    # The engine's interpreter must not import our packages, and the run must not need a network.
    paths = {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=scratch,
        env=os.environ | paths, start_new_session=True,
    )  # fmt: skip
    try:
        process.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also what a process that ended has left running
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_line(file: Path) -> str:
    with file.open("rb") as said:
        said.seek(max(0, file.stat().st_size - 10_000))
        lines = said.read().decode("utf-8", "replace").strip().splitlines()
    errors = [line for line in lines if "rror" in line] or lines
    return _one_message(errors[-1]) if errors else f"it took longer than {_SECONDS:.0f} seconds, or was killed"


def _one_message(text: object) -> str:
    visible = "".join(char if char.isprintable() else " " for char in str(text)[: 10 * _MOST_SHOWN])
    return " ".join(visible.split())[:_MOST_SHOWN]


def read_answer(file: Path, batches: Sequence[InputBatch], engine: str) -> EngineAnswer:
    """Reads what an engine's script wrote.

    Raises Unsupported for an answer that isn't of the form: engines print and write what they like.
    """
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ValueError("too large")
        found = json.loads(file.read_text(encoding="utf-8"))
        error = _one_message(found["error"])
        pairs = () if error else zip(found["batches"], batches, strict=True)
        answers = tuple(_read_batch(item, batch) for item, batch in pairs)
        notes = tuple(_one_message(note) for note in found["notes"])
        return EngineAnswer(_one_message(found["version"]), answers, error, notes, found.get("dtype", "float32"))
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as err:
        raise Unsupported(f"the answer of {engine} is not of the form expected: {_one_message(err)}", "") from err


def _read_batch(found: Any, batch: InputBatch) -> BatchScores:
    """Reads the scores of a batch, of which there has to be a row for each text, or for each of its tokens."""
    import numpy as np

    nothing, raw = np.empty((0, 0)), bool(found["raw"])
    if found["error"]:
        return BatchScores(nothing, raw, _one_message(found["error"]))
    rows, counts = found["scores"], [1] * len(batch.items)
    if rows and all(isinstance(row, list) and row and isinstance(row[0], list) for row in rows):
        counts = [len(item.ids or ()) for item in batch.items]
        rows = [token for text in rows for token in text] if [len(text) for text in rows] == counts else []
    scores = np.asarray(rows, dtype=np.float64)
    if scores.ndim != 2 or len(scores) != sum(counts):
        return BatchScores(nothing, raw, f"scores of the shape {scores.shape}")
    if not np.isfinite(scores).all():
        return BatchScores(nothing, raw, "scores that are not finite", is_finite=False)
    return BatchScores(scores, raw)
