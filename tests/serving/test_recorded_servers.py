"""`verify --url` against what real servers answered: kept in `recorded/`, and replayed on loopback."""

import json
import re
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import pytest
from serving.recordings import FOLDER, RECIPES, Recording, recording, replayed, save_recipe

import headscope
from headscope.errors import HeadscopeError
from headscope.shell.app import main

DOCS = Path(__file__).parents[2] / "docs" / "verify.md"


@dataclass(frozen=True)
class Expected:
    """What is to be found of a recorded server: the protocol, the head, and the function on its scores by default."""

    protocol: str
    formula: str
    activation: str
    same_scores: bool
    gives_logits: bool = True
    precision: str = "float32"


NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
OWN, NO_POOLER = "classifier(tanh(dense(h[CLS])))", "classifier(h[CLS])"
EXPECTED = {
    "vllm-bert": Expected("vllm", OWN, "softmax", same_scores=True),
    "vllm-ernie": Expected("vllm-pooling", NO_POOLER, "softmax", same_scores=False),
    "infinity-bert": Expected("infinity", OWN, "softmax", same_scores=True, gives_logits=False),
    "infinity-bert-one-label": Expected("infinity", OWN, "sigmoid", same_scores=True),  # as the pipeline gives
    "mlserver-bert": Expected("kserve", OWN, "softmax", same_scores=True),
    "llama-cpp-bert-one-label": Expected("llama-cpp", NO_POOLER, "none", same_scores=False, precision="float16"),
}


def served(kept: Recording, folder: Path) -> str:
    """The checkpoint that the recorded server had."""
    assert save_recipe(kept.name, folder) == kept.digest, (
        f"the checkpoint is not the one that {kept.engine} served: record it again ({kept.recorded_on}, {kept.started})"
    )
    return str(folder)


@pytest.mark.parametrize("name", NAMES)
def test_the_scores_of_a_real_server_give_its_verdict(name: str, tmp_path: Path) -> None:
    kept, expected = recording(name), EXPECTED[name]
    folder = served(kept, tmp_path)
    with replayed(kept) as (url, unknown):
        found = headscope.verify_served(folder, url)
    assert unknown == [], "requests that were not recorded: record the server again"
    result, explained = found.served, found.served.explanation
    assert (found.protocol, result.same) == (expected.protocol, expected.same_scores)
    assert result.precision == expected.precision
    assert found.formula == OWN and found.engine_version in ("", kept.version) and result.texts >= 15
    if explained is None:
        assert result.same and (expected.formula, expected.activation) == (OWN, found.activation), found
    else:
        assert (explained.formula, explained.activation) == (expected.formula, expected.activation), found


@pytest.mark.parametrize("name", [name for name in NAMES if EXPECTED[name].gives_logits])
def test_the_logits_of_a_real_server_show_its_head_alone(name: str, tmp_path: Path) -> None:
    kept, expected = recording(name), EXPECTED[name]
    folder = served(kept, tmp_path)
    with replayed(kept) as (url, unknown):
        found = headscope.verify_served(folder, url, logits=True)
    assert unknown == [], "requests that were not recorded: record the server again"
    explained = found.served.explanation
    assert found.served.same is (expected.formula == OWN), found
    assert explained is None or (explained.formula, explained.activation) == (expected.formula, "none"), found


def test_the_page_that_vllm_refuses_is_named(tmp_path: Path) -> None:
    """vLLM's /classify refuses what its Transformers backend gives for ERNIE, which has one axis more."""
    kept = recording("vllm-ernie")
    folder = served(kept, tmp_path)
    with replayed(kept) as (url, _):
        notes = headscope.verify_served(folder, url).served.notes
    assert any("/classify answered 400" in note and "vLLM's /pooling" in note for note in notes)


def test_every_recipe_was_recorded_and_is_expected() -> None:
    assert NAMES == sorted(RECIPES) == sorted(EXPECTED)
    assert len({recording(name).engine for name in NAMES}) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_the_documentation_names_the_version_that_was_recorded(name: str) -> None:
    kept = recording(name)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", kept.recorded_on) and kept.started and kept.version
    row = f"| {kept.engine} | {kept.version} | {kept.recorded_on} | `{RECIPES[name].family}ForSequenceClassification`"
    assert row in DOCS.read_text(encoding="utf-8"), f"docs/verify.md doesn't have {row}"


def test_a_request_that_was_not_recorded_fails(tmp_path: Path) -> None:
    kept = recording("vllm-bert")
    folder = served(kept, tmp_path)
    with replayed(kept) as (url, unknown), pytest.raises(HeadscopeError, match="599"):
        headscope.verify_served(folder, url, text=["a text that no server was asked about"] * 6)
    assert [one.path for one in unknown] == ["/classify"]


def test_other_answers_give_another_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = deepcopy(recording("vllm-bert"))
    folder = served(kept, tmp_path)
    with replayed(kept) as (url, _):
        assert main(["verify", folder, "--url", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["engine"] == "vllm"
    for one in kept.exchanges:
        for row in one.get("json", {}).get("data", ()):
            if "probs" in row:
                row["probs"].reverse()
    with replayed(kept) as (url, _):
        assert main(["verify", folder, "--url", url, "--json"]) == 1
    explained = json.loads(capsys.readouterr().out)["served"]["explanation"]
    assert (explained["formula"], explained["order"]) == (OWN, [2, 1, 0])
