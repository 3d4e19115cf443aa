"""An adapter and its base model in two repositories of a Hub: every file is read at its own repository's commit."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from families import FAMILIES
from hub import Answer, Hub, serve

from tests import warm

peft = pytest.importorskip("peft")

_COMMITS = {"someone/base": {"main": "b" * 40, "pinned": "c" * 40}, "someone/adapter": {"main": "a" * 40}}
_LARGE = ".safetensors"


@dataclass
class World:
    """The files of each repository at each commit, behind a Hub on loopback."""

    files: dict[tuple[str, str], dict[str, bytes]]
    hub: Hub

    def answer(self, origin: str, method: str, path: str) -> Answer | None:  # noqa: PLR0911 - a table of routes
        """What the Hub says, by repository and revision."""
        if path.startswith("/api/models/"):
            repo, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            commit = self._commit(repo, revision or "main")
            if not commit:
                return 404, {"X-Error-Code": "RevisionNotFound"}, b""
            names = [{"rfilename": name} for name in self.files[repo, commit]]
            body = {"id": repo, "modelId": repo, "sha": commit, "siblings": names, "private": False}
            return 200, {"Content-Type": "application/json", "X-Repo-Commit": commit}, json.dumps(body).encode()
        if origin == "cdn" or "/resolve/" not in path:
            return None
        repo, _, rest = path.lstrip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        commit = self._commit(repo, revision)
        if not commit:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        content = self.files[repo, commit].get(name)
        if content is None:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        headers = {"X-Repo-Commit": commit, "ETag": f'"{commit[:8]}{name}"'}
        if name.endswith(_LARGE):
            self.hub.repos[f"{repo}/{commit}"] = self.files[repo, commit]
            moved = {"X-Linked-Size": str(len(content)), "Location": f"{self.hub.cdn}/{repo}/{commit}/{commit}/{name}"}
            return 302, headers | moved | {"Content-Length": "0"}, b""
        return 200, headers, content

    def _commit(self, repo: str, revision: str) -> str:
        known = _COMMITS.get(repo, {})
        return known.get(revision, revision if revision in known.values() else "")

    def asked(self, repo: str) -> set[str]:
        """The commits of a repository at which files were asked for."""
        paths = [item.path for item in self.hub.log]
        revisions = {path.partition("/resolve/")[2].partition("/")[0] for path in paths if f"/{repo}/resolve/" in path}
        return {self._commit(repo, revision) or f"{revision}, which {repo} lacks" for revision in revisions}

    def run(self, home: Path, *arguments: str) -> dict[str, Any]:
        """A command in a separate process, and the JSON that it prints."""
        settings = {"HF_ENDPOINT": self.hub.endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        ran = subprocess.run(
            [*warm.python(), "-m", "headscope", *arguments, "--json", "--no-cache"],
            capture_output=True, text=True, check=False, timeout=300, env=clean | settings,
        )  # fmt: skip
        assert "Traceback" not in ran.stderr, ran.stderr
        answer: dict[str, Any] = json.loads(ran.stdout)
        return answer


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, bytes]]:
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
    path = folder / "adapter" / "adapter_config.json"
    settings = json.loads(path.read_text()) | {"base_model_name_or_path": "someone/base", "revision": "pinned"}
    path.write_text(json.dumps(settings))
    found["someone/adapter", _COMMITS["someone/adapter"]["main"]] = _files(folder / "adapter")
    return found


@pytest.fixture
def world(made: dict[tuple[str, str], dict[str, bytes]]) -> Iterator[World]:
    with serve(Hub({})) as hub:
        running = World(made, hub)
        hub.answer = running.answer
        yield running


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
