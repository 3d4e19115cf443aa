"""`verify --url` against what real servers answered: kept in `recorded/`, and replayed on loopback."""

import re
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import pytest
from serving.recordings import FOLDER, RECIPES, Recording, recording, replayed, save_recipe

import headscope
from headscope.errors import HeadscopeError
from tests.cli.command import Cli

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
    note: str = ""
    """What a note has to say, as an expression."""


NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
OWN, NO_POOLER = "classifier(tanh(dense(h[CLS])))", "classifier(h[CLS])"
EXPECTED = {
    "vllm-bert": Expected("vllm", OWN, "softmax", same_scores=True),
    "vllm-ernie": Expected(  # vLLM's /classify refuses what its Transformers backend gives for it: one axis more
        "vllm-pooling", NO_POOLER, "softmax", same_scores=False, note=r"/classify answered 400.*vLLM's /pooling"
    ),
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


def verified(kept: Recording, folder: Path, **options: bool) -> headscope.VerifiedServer:
    """The result on a recorded server."""
    with replayed(kept) as (url, unknown):
        found = headscope.verify_served(served(kept, folder), url, **options)
    assert unknown == [], "requests that were not recorded: record the server again"
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_scores_of_a_real_server_give_its_verdict(name: str, tmp_path: Path) -> None:
    kept, expected = recording(name), EXPECTED[name]
    found = verified(kept, tmp_path)
    result, explained = found.served, found.served.explanation
    assert (found.protocol, result.same) == (expected.protocol, expected.same_scores)
    assert result.precision == expected.precision
    assert not expected.note or any(re.search(expected.note, note) for note in result.notes), result.notes
    assert found.formula == OWN and found.engine_version in ("", kept.version) and result.texts >= 15
    if explained is None:
        assert result.same and (expected.formula, expected.activation) == (OWN, found.activation), found
    else:
        assert (explained.formula, explained.activation) == (expected.formula, expected.activation), found


@pytest.mark.parametrize("name", [name for name in NAMES if EXPECTED[name].gives_logits])
def test_the_logits_of_a_real_server_show_its_head_alone(name: str, tmp_path: Path) -> None:
    expected, found = EXPECTED[name], verified(recording(name), tmp_path, logits=True)
    explained = found.served.explanation
    assert (found.served.same, found.requested) == (expected.formula == OWN, "logits"), found
    assert explained is None or (explained.formula, explained.activation) == (expected.formula, "none"), found


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


def test_other_answers_give_another_verdict(tmp_path: Path, cli: Cli) -> None:
    kept = deepcopy(recording("vllm-bert"))
    folder = served(kept, tmp_path)
    with replayed(kept) as (url, _):
        assert cli.json("verify", folder, "--url", url)["engine"] == "vllm"
    for one in kept.exchanges:
        for row in one.get("json", {}).get("data", ()):
            if "probs" in row:
                row["probs"].reverse()
    with replayed(kept) as (url, _):
        explained = cli.json("verify", folder, "--url", url, code=1)["served"]["explanation"]
    assert (explained["formula"], explained["order"]) == (OWN, [2, 1, 0])
