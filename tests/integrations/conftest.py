"""What each test of a trainer begins with."""

from pathlib import Path

import pytest
import transformers

from tests.integrations.small import with_new_head


@pytest.fixture
def model(tmp_path: Path) -> transformers.PreTrainedModel:
    """A classifier whose base model is in `base`, and whose head is new."""
    return with_new_head(tmp_path)
