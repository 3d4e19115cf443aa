"""A tiny classifier that names its class and its labels."""

from typing import Any

import pytest
from states.table.small import classifier


@pytest.fixture
def model() -> Any:
    return classifier("bert")
