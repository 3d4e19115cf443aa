"""A tiny classifier that names its class and its labels."""

from typing import Any

import pytest

from tests.families import FAMILIES

_LABELS = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}


@pytest.fixture
def model() -> Any:
    family = FAMILIES["bert"]
    made = family.build(family.classifier, **_LABELS)
    made.config.architectures = [type(made).__name__]
    return made
