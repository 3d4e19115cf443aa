"""The scripts that run engines, with an engine that is made up."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

import headscope
from headscope.errors import UsageError
from headscope.shared.serving.engine_facts import EngineEvidence

_RUNNERS = Path(headscope.__file__).parent / "shared" / "serving" / "running" / "runners"
_VLLM = {
    "vllm/__init__.py": """
__version__ = "9.9"
class PoolingParams:
    def __init__(self, use_activation, extra_kwargs): self.use, self.extra = use_activation, extra_kwargs
class Scores(list):
    def flatten(self): return self
    def tolist(self): return list(self)
class Output:
    def __init__(self, scores): self.outputs = type("Data", (), {"data": Scores(scores)})
class LLM:
    pooling_task = "classify"
    def __init__(self, model, **options):
        if "refused" in model: raise ValueError("no such\\n  class")
        if "broken" in model: raise ImportError("a library is missing")
        if "generates" in model: self.pooling_task = "embed"
    def encode(self, prompts, pooling_params, pooling_task, use_tqdm):
        if any(len(prompt["prompt_token_ids"]) > 4 for prompt in prompts): raise ValueError("too long")
        first = [params.extra["compressed_token_type_ids"] if params.extra else -1 for params in pooling_params]
        return [Output([len(prompts), params.use, at]) for params, at in zip(pooling_params, first)]
""",
    "vllm/engine/arg_utils.py": """
import json
class EngineArgs:
    def __init__(self, model, runner): self.folder = model
    def create_model_config(self):
        config = json.load(open(self.folder + "/config.json"))
        if config["model_type"] != "bert": raise ValueError("no such model Supported architectures: a, b")
        self.architectures, self.dtype = config["architectures"], "torch.float16"
        self.pooler_config = type("Pooler", (), {"seq_pooling_type": "CLS", "tok_pooling_type": "ALL"})
        self.registry = type("Registry", (), {"resolve_model_cls": lambda names, model_config: (None, "Fallback")})
        return self
""",
    "vllm/entrypoints/pooling/scoring/utils.py": "def compress_token_type_ids(types): return types.index(1)",
}


def _batch(name: str, *rows: list[int], raw: bool = True, padding: str | None = None) -> dict[str, Any]:
    items = [{"text": "", "pair": None, "ids": row, "types": None} for row in rows]
    return {"name": name, "raw": raw, "padding": padding, "items": items}


def _write_vllm(folder: Path) -> None:
    for name, text in _VLLM.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _run(
    runner: str, tmp_path: Path, folder: str, *batches: dict[str, Any]
) -> tuple[dict[str, Any] | None, subprocess.CompletedProcess[str]]:
    """The answer that a script writes, None where it writes none, and how it ended."""
    request, answer = tmp_path / "request.json", tmp_path / "answer.json"
    request.write_text(json.dumps({"folder": folder, "scratch": str(tmp_path), "batches": batches}))
    command = [sys.executable, str(_RUNNERS / runner), str(request), str(answer)]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False
    )
    return json.loads(answer.read_text()) if answer.exists() else None, done


def _run_vllm(tmp_path: Path, folder: str, *batches: dict[str, Any]) -> dict[str, Any]:
    _write_vllm(tmp_path)
    answer, done = _run("vllm.py", tmp_path, folder, *batches)
    assert answer is not None, done.stderr
    return answer


def test_texts_without_padding_are_a_call_each_and_a_batch_is_one_call(tmp_path: Path) -> None:
    batches = _batch("one", [5], [6, 7]), _batch("all", [5], [6, 7], raw=False, padding="left")
    answer = _run_vllm(tmp_path, "x", *batches)
    assert (answer["version"], answer["error"], answer["notes"]) == ("9.9", "", [])
    one, together = answer["batches"]
    assert one == {"scores": [[1, False, -1]] * 2, "raw": True, "error": ""}
    assert together == {"scores": [[2, None, -1]] * 2, "raw": False, "error": ""}


def test_segment_ids_are_sent_with_the_pairs_that_have_some_and_a_note_says_how(tmp_path: Path) -> None:
    batch = _batch("pairs", [5, 6, 7], [5, 6, 7])
    batch["items"][0]["types"], batch["items"][1]["types"] = [0, 0, 1], [0, 0, 0]
    answer = _run_vllm(tmp_path, "x", batch)
    assert [row[2] for row in answer["batches"][0]["scores"]] == [2, -1]
    assert "segment IDs of pairs" in answer["notes"][0]


def test_an_error_in_one_batch_leaves_the_others(tmp_path: Path) -> None:
    long, short = _run_vllm(tmp_path, "x", _batch("long", [1, 2, 3, 4, 5]), _batch("short", [1]))["batches"]
    assert long == {"scores": [], "raw": True, "error": "ValueError: too long"}
    assert len(short["scores"]) == 1


@pytest.mark.parametrize(
    ("folder", "error"),
    [("refused", "ValueError: no such class"), ("generates", "vLLM gives no scores for it: its task is embed")],
)
def test_a_checkpoint_that_the_engine_refuses_is_one_line(tmp_path: Path, folder: str, error: str) -> None:
    answer = _run_vllm(tmp_path, folder, _batch("one", [5]))
    assert (answer["error"], answer["batches"]) == (error, [])


def test_a_broken_installation_is_no_refusal(tmp_path: Path) -> None:
    _write_vllm(tmp_path)
    answer, done = _run("vllm.py", tmp_path, "broken", _batch("one", [5]))
    assert answer is None and done.stderr.strip().endswith("ImportError: a library is missing")


def test_llama_cpp_without_its_converter_gives_no_answer(tmp_path: Path) -> None:
    fake = "\n".join(("__version__ = '9.9'", "llama_log_callback = lambda made=None: made"))
    (tmp_path / "llama_cpp.py").write_text(fake)
    answer, done = _run("llama_cpp.py", tmp_path, "x", _batch("one", [5]))
    assert (done.returncode, answer) == (1, None)
    assert done.stderr.startswith("Set HEADSCOPE_LLAMA_CONVERTER")


def _ask_vllm(tmp_path: Path, kind: str) -> headscope.Engines:
    """What `engines` says of a configuration with the interpreter of the engine that is made up."""
    _write_vllm(tmp_path)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    config = transformers.AutoConfig.for_model(kind, num_labels=3)
    config.architectures = [f"{type(config).__name__.removesuffix('Config')}ForSequenceClassification"]
    config.save_pretrained(tmp_path / "model")
    return headscope.engines(tmp_path / "model", engine="vllm", python=str(python), offline=True)


def test_an_engine_that_resolves_a_configuration_does_not_show_its_head(tmp_path: Path) -> None:
    (found,) = _ask_vllm(tmp_path, "bert").engines
    assert (found.evidence, found.runs, found.same_head, found.version) == (EngineEvidence.ASKED, None, None, "9.9")
    assert (found.positions, found.dtype, found.verdict) == ("CLS", "float16 on this machine", "not_determined")
    assert "resolves config.json to Fallback" in found.reason


def test_a_configuration_that_the_engine_refuses_gives_no_scores(tmp_path: Path) -> None:
    report = _ask_vllm(tmp_path, "deberta-v2")
    (found,) = report.engines
    assert (found.evidence, found.runs, found.reason) == (EngineEvidence.ASKED, False, "ValueError: no such model")
    assert report.verdict == "different"


def test_only_an_engine_that_can_be_asked_takes_an_interpreter_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"llama-cpp|llama.cpp"):
        headscope.engines(tmp_path, engine="llama-cpp", python=sys.executable)
