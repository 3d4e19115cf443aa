"""Random numbers that are the same in every run."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)
