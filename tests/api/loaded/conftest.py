"""What the tests of `strict` load, and what they have to leave."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers

from tests.api.loaded.lost import without
from tests.families import FAMILIES

METHODS = [
    (transformers.PreTrainedModel, "from_pretrained"),
    (transformers.PreTrainedModel, "_finalize_model_loading"),
    (transformers.AutoConfig, "from_pretrained"),
    (transformers.PreTrainedConfig, "from_pretrained"),
]


@pytest.fixture(autouse=True)
def transformers_is_as_it_was() -> Iterator[None]:
    before = [vars(owner)[name] for owner, name in METHODS]
    yield
    assert [vars(owner)[name] for owner, name in METHODS] == before


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BERT as a base model, a language model, a classifier, and a classifier whose head the save lost."""
    folder, family = tmp_path_factory.mktemp("saved"), FAMILIES["bert"]
    classes = {"base": family.base, "mlm": "BertForMaskedLM", "whole": family.classifier, "lost": family.classifier}
    for name, cls in classes.items():
        family.build(cls).save_pretrained(folder / name)
    without(folder / "lost", "classifier")
    return folder
