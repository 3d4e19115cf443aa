"""An adapter and its base model in two repositories of a Hub: every file is read at its own repository's commit."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from families import FAMILIES
from hub import Hub, client_settings, serve

from tests import warm
from tests.edits import edit_json

peft = pytest.importorskip("peft")

_COMMITS = {"someone/base": {"main": "b" * 40, "pinned": "c" * 40}, "someone/adapter": {"main": "a" * 40}}
Files = dict[tuple[str, str], dict[str, bytes]]


@dataclass
class World(Hub):
    """A Hub whose repositories have commits of their own."""

    at_commits: Files = field(default_factory=dict)

    def files(self, repo: str, revision: str) -> dict[str, bytes]:
        return self.at_commits[repo, self.commit(repo, revision)]

    def commit(self, repo: str, revision: str) -> str:
        known = _COMMITS[repo]
        return known.get(revision, revision if revision in known.values() else "")

    def asked(self, repo: str) -> set[str]:
        """The commits of a repository at which files were asked for."""
        paths = [item.path for item in self.log]
        revisions = {path.partition("/resolve/")[2].partition("/")[0] for path in paths if f"/{repo}/resolve/" in path}
        return {self.commit(repo, revision) or f"{revision}, which {repo} lacks" for revision in revisions}

    def run(self, home: Path, *arguments: str) -> dict[str, Any]:
        """A command in a separate process, and the JSON that it prints."""
        ran = subprocess.run(
            [*warm.python(), "-m", "headscope", *arguments, "--json", "--no-cache"],
            capture_output=True, text=True, check=False, timeout=300, env=client_settings(self.endpoint, home),
        )  # fmt: skip
        assert "Traceback" not in ran.stderr, ran.stderr
        answer: dict[str, Any] = json.loads(ran.stdout)
        return answer


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A base model whose pinned revision pads on the left and has another pooler, and an adapter for it."""
    folder, bert = tmp_path_factory.mktemp("made"), FAMILIES["bert"]
    found = {}
    for revision, side in (("main", "right"), ("pinned", "left")):
        model = bert.build("BertModel")
        if revision == "pinned":
            torch.nn.init.normal_(model.pooler.dense.weight)
        model.save_pretrained(folder / revision)
        found["someone/base", _COMMITS["someone/base"][revision]] = _files(folder / revision) | {
            "tokenizer_config.json": json.dumps({"padding_side": side, "pad_token": "[PAD]"}).encode()
        }
    labels = {"id2label": {0: "no", 1: "yes", 2: "maybe"}, "label2id": {"no": 0, "yes": 1, "maybe": 2}}
    model = transformers.BertForSequenceClassification.from_pretrained(folder / "main", **labels)
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
    peft.get_peft_model(model, config).save_pretrained(folder / "adapter")
    pinned = {"base_model_name_or_path": "someone/base", "revision": "pinned"}
    edit_json(folder / "adapter" / "adapter_config.json", pinned)
    found["someone/adapter", _COMMITS["someone/adapter"]["main"]] = _files(folder / "adapter")
    return found


@pytest.fixture
def world(made: Files) -> Iterator[World]:
    hub = World({repo: {} for repo in _COMMITS}, at_commits=made)
    with serve(hub):
        yield hub


_PINNED, _MAIN = _COMMITS["someone/base"]["pinned"], _COMMITS["someone/base"]["main"]


@pytest.mark.parametrize(
    ("arguments", "commit", "pads_left"),
    [
        (["someone/adapter"], _PINNED, True),
        (["someone/base", "--adapter", "someone/adapter"], _MAIN, False),
        (["someone/base", "--adapter", "someone/adapter", "--revision", "pinned"], _PINNED, True),
        (["someone/base@pinned", "--adapter", "someone/adapter"], _PINNED, True),
    ],
    ids=["pinned in the adapter", "a base of the user's", "a revision of the user's", "a revision in the reference"],
)
def test_each_repository_is_read_at_its_own_commit(
    arguments: list[str], commit: str, pads_left: bool, world: World, tmp_path: Path
) -> None:
    (answer,) = world.run(tmp_path, "check", *arguments, "--for", "inference")["results"]
    assert world.asked("someone/base") == {commit}
    assert world.asked("someone/adapter") == {_COMMITS["someone/adapter"]["main"]}
    assert ("HS303" in {item["id"] for item in answer["findings"]}) is pads_left
    assert answer["adapter"]["base_commit"] == commit
    assert answer["checkpoint"]["commit"] == _COMMITS["someone/adapter"]["main"]
    assert [gap["what"] for gap in answer["not_determined"]] == ["HS502 looks-untrained"]  # too small a head


def test_values_are_compared_at_the_pinned_revision(world: World, tmp_path: Path) -> None:
    answer = world.run(tmp_path, "compare", "someone/adapter", "someone/base@pinned", "--values", "--num-labels", "3")
    same = {item["parameter"]: item["identical"] for item in answer["values"]}
    assert same["bert.pooler.dense.weight"] is True
    assert world.asked("someone/base") == {_PINNED}
