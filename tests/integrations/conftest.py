"""The fixture of the trainers' tests."""

from tests.integrations.small import model

__all__ = ["model"]
