"""A use case reads a checkpoint once: its manifest, its folder and its configuration are asked for in one place."""

from pathlib import Path
from unittest import mock

import pytest

import headscope
from headscope.core.checkpoints import checkpoint_files, reading
from headscope.core.facts.stored import checkpoint as stored


def test_a_check_reads_the_manifest_once_and_opens_its_places_once(
    classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = {}
    for module, name in ((reading, "read_manifest"), (checkpoint_files, "open_sidecar")):
        calls[name] = mock.Mock(wraps=getattr(module, name))
        monkeypatch.setattr(module, name, calls[name])
    headscope.check(classifier, "inference", run=False)
    # One reader is for the files beside the weights, the other for the bytes of the tensors.
    assert {name: call.call_count for name, call in calls.items()} == {"read_manifest": 1, "open_sidecar": 2}


def test_nobody_changes_the_configuration_of_a_manifest(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = []
    whole = stored.CheckpointManifest.__post_init__

    def remember(self: stored.CheckpointManifest) -> None:
        whole(self)
        manifests.append((self, stored.own_config(self.config)))

    monkeypatch.setattr(stored.CheckpointManifest, "__post_init__", remember)
    headscope.check(classifier, "inference", run=False)
    assert manifests and all(manifest.config == before for manifest, before in manifests)
