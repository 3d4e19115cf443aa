"""The state that a refusal names."""

from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope.errors import HeadscopeError, NotFound
from headscope.facts import CheckpointState

Model = Any


def refused(folder: Path, kind: type[HeadscopeError] = NotFound) -> CheckpointState:
    """The state that an error names."""
    with pytest.raises(kind) as caught:
        headscope.inspect(str(folder), offline=True)
    assert isinstance(caught.value.state, CheckpointState)
    assert all(word in caught.value.message for word in caught.value.state.evidence)
    return caught.value.state
