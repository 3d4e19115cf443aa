"""Where the proofs of these tests run, and what most of them change."""

from pathlib import Path

import pytest

from headscope.copies import proving
from tests.editing.checkpoints import saved
from tests.editing.seeded import configured
from tests.edits import prove_in_this_process


@pytest.fixture
def proofs_apart() -> None:
    """Proofs run in separate processes, as for users."""


@pytest.fixture(autouse=True)
def proofs_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs run in this process, where a test doesn't ask for separate ones: each of these imports PyTorch again."""
    if "proofs_apart" not in request.fixturenames:
        monkeypatch.setattr(proving, "prove_in_process", prove_in_this_process)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = saved("BertForSequenceClassification", tmp_path_factory.mktemp("bert") / "model")
    (folder / "README.md").write_text("# A model\n")
    (folder / "vocab.txt").write_text("[PAD]\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The configuration of a classifier, to which a test adds its states."""
    return configured(tmp_path / "old")
