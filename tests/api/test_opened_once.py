"""A use case reads a checkpoint once: its manifest, its folder and its configuration are asked for in one place."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope.core.checkpoints import checkpoint_files, reading
from headscope.core.facts.stored import checkpoint as stored
from tests.families import FAMILIES


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the manifest was read, and a folder was opened."""
    counted: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            counted[name] += 1
            return function(*given, **named)

        return call

    for module, name in ((reading, "read_manifest"), (checkpoint_files, "open_sidecar")):
        monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    return counted


def test_a_check_reads_the_manifest_once_and_opens_its_places_once(tmp_path: Path, calls: Counter[str]) -> None:
    FAMILIES["bert"].build("BertForSequenceClassification").save_pretrained(tmp_path)
    headscope.check(tmp_path, "inference", run=False)
    # One reader is for the files beside the weights, the other for the bytes of the tensors.
    assert calls == {"read_manifest": 1, "open_sidecar": 2}


def test_nobody_changes_the_configuration_of_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FAMILIES["bert"].build("BertForSequenceClassification").save_pretrained(tmp_path)
    manifests = []
    whole = stored.CheckpointManifest.__post_init__

    def remember(self: stored.CheckpointManifest) -> None:
        whole(self)
        manifests.append((self, stored.own_config(self.config)))

    monkeypatch.setattr(stored.CheckpointManifest, "__post_init__", remember)
    headscope.check(tmp_path, "inference", run=False)
    assert manifests and all(manifest.config == before for manifest, before in manifests)
