"""`engines --run` with engines that are made up: each computes a known head, or fails in a known way."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from serving.classifiers import save_model

import headscope
from headscope.core.source.checkpoint import examine
from headscope.errors import Unsupported, UsageError
from headscope.shared.serving.engine_facts import EngineEvidence, EngineHead
from headscope.shared.serving.engine_runs import EngineTrial, engine_trial
from headscope.shared.serving.running import process
from headscope.shared.serving.running.process import runner_names
from headscope.shell.values import make_request
from tests import warm
from tests.cli.command import Cli

_ENGINE = """
import json, sys, time
import torch, transformers
request = json.load(open(sys.argv[1]))
name = json.load(open(request["folder"] + "/config.json"))["architectures"][0]
model = getattr(transformers, name).from_pretrained(request["folder"]).eval()
pad = model.config.pad_token_id
def head(given): return {head}
def default(row, batch): return {default}
def scores(item, batch):
    with torch.no_grad():
        given = dict(input_ids=torch.tensor([item["ids"]]))
        if item["types"] is not None: given["token_type_ids"] = torch.tensor([item["types"]])
        if len(item["ids"]) > 62: raise ValueError("too long")
        return default(head(given)[0], batch).tolist()
def answer(batch):
    try: return dict(scores=[scores(item, batch) for item in batch["items"]], raw=batch["raw"], error="")
    except Exception as error: return dict(scores=[], raw=batch["raw"], error=str(error))
answers = [answer(batch) for batch in request["batches"]]
json.dump(dict(version="9.9", error="", batches=answers, notes=[]), open(sys.argv[2], "w"))
"""
_OWN = "model(**given).logits"
_HIDDEN = "model.bert(**given).last_hidden_state"
HEADS = {
    "no pooler": f"model.classifier({_HIDDEN}[:, 0])",
    "mean": f"model.classifier(torch.tanh(model.bert.pooler.dense({_HIDDEN}.mean(1))))",
    "no bias": f"{_OWN} - model.classifier.bias",
    "softsign": f"model.classifier(torch.nn.functional.softsign(model.bert.pooler.dense({_HIDDEN}[:, 0])))",
}


def engine(head: str = _OWN, default: str = "row if batch['raw'] else row.softmax(-1)") -> str:
    """The script of an engine with a head of its own and a function on its scores."""
    return _ENGINE.format(head=head, default=default)


@pytest.fixture(scope="module")
def trial(bert: str) -> Iterator[tuple[EngineTrial, EngineHead]]:
    checkpoint = examine("inspect", make_request(bert, {}), None)
    cited = headscope.engines(bert, engine="vllm@0.33.0").engines[0]
    with engine_trial(checkpoint) as found:
        yield found, cited


@pytest.fixture
def warm_python(tmp_path: Path) -> str:
    """An interpreter that has imported PyTorch and Transformers."""
    return str(warm.interpreter(tmp_path / "bin"))


@pytest.fixture
def ran(
    trial: tuple[EngineTrial, EngineHead], warm_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], EngineHead]:
    """The entry that a made-up engine gets."""

    def run(script: str) -> EngineHead:
        (tmp_path / "vllm.py").write_text(script)
        monkeypatch.setattr(process, "RUNNERS", tmp_path)
        found, cited = trial
        return found.head(cited, warm_python if "torch" in script else sys.executable)

    return run


def test_an_engine_with_the_same_head_is_the_same(ran: Callable[[str], EngineHead]) -> None:
    found = ran(engine())
    assert (found.runs, found.same_head, found.activation, found.same_activation) == (True, True, "softmax", True), (
        found
    )
    assert found.evidence is EngineEvidence.RAN and found.version == "9.9" and "random copy" in found.source
    assert not found.reads_padding and not found.drops and not found.formula
    [note] = found.notes
    assert note.endswith(": too long")
    assert any("weights" in item for item in found.not_looked_at)


@pytest.mark.parametrize(
    ("head", "formula"),
    [
        ("no pooler", "classifier(h[CLS])"),
        ("mean", "classifier(tanh(dense(mean(h[non-pad]))))"),
        ("no bias", ""),
        ("softsign", ""),
    ],
)
def test_another_head_is_named_or_has_no_explanation(ran: Callable[[str], EngineHead], head: str, formula: str) -> None:
    found = ran(engine(HEADS[head]))
    assert (found.same_head, found.formula) == (False, formula), found
    assert ("no explanation" in found.reason) is (not formula)


def test_segment_ids_that_are_left_out_are_named(ran: Callable[[str], EngineHead]) -> None:
    found = ran(engine("model(input_ids=given['input_ids']).logits"))
    assert (found.same_head, found.drops) == (True, ("segment IDs",))
    assert any(note.startswith("A pair ") for note in found.notes)


def test_padding_tokens_that_are_read_are_named(ran: Callable[[str], EngineHead]) -> None:
    found = ran(engine(f"{_OWN} + (given['input_ids'] == pad).any() * 1.0"))
    assert (found.same_head, found.reads_padding) == (True, True)


@pytest.mark.parametrize(
    ("default", "activation"),
    [
        ("row if batch['raw'] else row.sigmoid()", "sigmoid"),
        ("row", "none"),
        ("row if batch['raw'] else row.sigmoid() ** 2", None),
    ],
)
def test_the_function_on_the_scores_is_measured(
    ran: Callable[[str], EngineHead], default: str, activation: str | None
) -> None:
    found = ran(engine(default=default))
    assert (found.same_head, found.activation) == (True, activation)
    assert found.same_activation is (None if activation is None else False)


_WRITE = "import json, sys\nrequest = json.load(open(sys.argv[1]))\nopen(sys.argv[2], 'w').write({})"
_ROWS = (
    "json.dumps(dict(version='9.9', error='', notes=[], "
    "batches=[dict(scores={}, raw=b['raw'], error='') for b in request['batches']]))"
)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import nothing_like_this", "ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("import os\nos.abort()", "vllm could not be run"),
        (_WRITE.format("'{'"), "is not of the form expected"),
        (_WRITE.format("'[1, 2]'"), "is not of the form expected"),
        (
            _WRITE.format("json.dumps(dict(version='9.9', error='', notes=[], batches=[]))"),
            "is not of the form expected",
        ),
    ],
)
def test_an_engine_that_cannot_be_run_says_nothing_of_the_checkpoint(
    ran: Callable[[str], EngineHead], script: str, words: str
) -> None:
    with pytest.raises(Unsupported, match=words):
        ran(script)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("[[1.0, 2.0, 3.0]]", "scores of the shape (1, 3)"),
        ("[1.0 for _ in b['items']]", "scores of the shape (12,)"),
        ("[[1.0, 2.0] for _ in b['items']]", "the engine gave 2 scores for a text"),
        ("[[1.0, 2.0, 3.0] for _ in b['items']]", "hardly differ"),
    ],
)
def test_scores_that_cannot_be_compared_are_not_determined(
    ran: Callable[[str], EngineHead], rows: str, words: str
) -> None:
    found = ran(_WRITE.format(_ROWS.format(rows)))
    assert words in found.reason
    assert found.same_head is not True and not found.formula


def test_scores_that_are_not_finite_are_another_head(ran: Callable[[str], EngineHead]) -> None:
    found = ran(_WRITE.format(_ROWS.format("[[float('nan')] * 3 for _ in b['items']]")))
    assert (found.runs, found.same_head, found.formula) == (True, False, "")
    assert found.reason == "The scores are NaN or infinite."


def test_a_refusal_of_the_copy_is_not_one_of_the_checkpoint(ran: Callable[[str], EngineHead]) -> None:
    found = ran(_WRITE.format("json.dumps(dict(version='9.9', error='no such class\\x1b[31m', notes=[], batches=[]))"))
    assert (found.runs, found.verdict) == (None, "not_determined")
    assert found.reason == "it refuses the small random copy, and may take the checkpoint: no such class [31m"


def test_an_engine_that_hangs_is_ended_with_all_its_processes(
    ran: Callable[[str], EngineHead], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process, "_SECONDS", 2.0)
    file = tmp_path / "pid"
    with pytest.raises(Unsupported, match="2 s"):
        ran(
            "import subprocess, sys, time\n"
            f"child = subprocess.Popen(['sleep', '600'])\nopen({str(file)!r}, 'w').write(str(child.pid))\n"
            "time.sleep(600)"
        )
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(int(file.read_text()), 0)
            status = Path(f"/proc/{file.read_text()}/stat")
            if status.exists() and ") Z " in status.read_text():  # ended, and not waited for by the first process
                raise ProcessLookupError


def test_the_command_runs_an_engine(bert: str, warm_python: str, cli: Cli) -> None:
    """The pipeline of the installed Transformers, for real; by default with the interpreter of this process."""
    command = ["engines", bert, "--run", "--engine", "transformers-pipeline"]
    (entry,) = cli.json(*command)["engines"]
    assert (entry["evidence"], entry["same_head"], entry["activation"]) == ("ran", True, "softmax")
    assert entry["version"] == transformers.__version__
    shown = cli(*command, "--python", warm_python).words
    assert "Run on a random copy" in shown and ": Transformers pipeline." in shown


@pytest.mark.parametrize("family", ["GPT2", "Roberta", "DistilBert", "ModernBert", "T5", "Qwen3"])
def test_other_families_are_the_same_in_the_pipeline(family: str, warm_python: str, tmp_path: Path) -> None:
    config = getattr(transformers, f"{family}Config")(id2label={0: "bad", 1: "good"})
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForSequenceClassification")(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(tmp_path)
    request = make_request(f"{family}ForSequenceClassification", {"offline": True})
    checkpoint = examine("inspect", request, None, takes_class=True)
    cited = headscope.engines("roberta-base", engine="transformers-pipeline", offline=True).engines[0]
    with engine_trial(checkpoint) as found:
        entry = found.head(cited, warm_python)
    assert entry.same_head is True, entry


def test_an_engine_that_scores_tokens_is_compared_token_by_token(
    warm_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model("Bert", tmp_path / "tokens", "TokenClassification")
    folder = tmp_path / "runners"
    folder.mkdir()
    monkeypatch.setattr(process, "RUNNERS", folder)
    request = make_request(str(tmp_path / "tokens"), {})
    cited = headscope.engines(str(tmp_path / "tokens"), engine="vllm@0.33.0").engines[0]
    found = {}
    with engine_trial(examine("inspect", request, None)) as trial:
        for name, head in {"own": _OWN, "no bias": HEADS["no bias"]}.items():
            (folder / "vllm.py").write_text(engine(head))
            found[name] = trial.head(cited, warm_python)
        with pytest.raises(Unsupported, match="each token"):
            trial.head(headscope.engines(str(tmp_path / "tokens"), engine="llama-cpp").engines[0], sys.executable)
    assert (found["own"].same_head, found["own"].activation) == (True, "softmax"), found["own"]
    assert (found["no bias"].same_head, found["no bias"].formula) == (False, ""), found["no bias"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"python": sys.executable}, "without the engine that it has"),
        ({"run": True, "python": sys.executable}, "without the engine that it has"),
        ({"run": True, "engine": "vllm@0.33.0"}, "names a version"),
        ({"run": True, "engine": "sglang"}, "can't run sglang"),
        ({"run": True, "engine": "vllm", "python": "/no/such/python"}, "is not a program that can be run"),
    ],
)
def test_what_cannot_be_run_is_refused(bert: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        headscope.engines(bert, **options)


def test_a_run_of_all_engines_keeps_what_was_read_of_those_that_are_not_installed(
    bert: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "vllm.py").write_text("import nothing_like_this")
    monkeypatch.setattr(process, "RUNNERS", tmp_path)
    assert runner_names() == ("vllm",)
    found = {item.engine: item for item in headscope.engines(bert, run=True).engines}
    assert found["vllm"].evidence is not EngineEvidence.RAN
    assert any(note.startswith("Not run: vllm ") and "ModuleNotFoundError" in note for note in found["vllm"].notes)
    assert found["llama-cpp"] == {item.engine: item for item in headscope.engines(bert).engines}["llama-cpp"]


def test_an_interpreter_with_a_relative_path_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "vllm" / "bin" / "python"
    place.parent.mkdir(parents=True)
    place.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'raise SystemExit(\"Error: it was run\")'\n")
    place.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unsupported, match="it was run"):
        process.run_engine("onnx-runtime", tmp_path, tmp_path, [], "vllm/bin/python")
