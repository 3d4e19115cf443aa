"""What surrounds a run: versions, settings."""

from __future__ import annotations

import platform
from importlib import metadata

from headscope.facts import Environment
from headscope.facts.environment import Surroundings


def environment() -> Environment:
    """Reads the versions that a report depends on, without importing the packages.

    Returns:
        The versions of Python, PyTorch, Transformers, huggingface_hub and safetensors; `not installed` for a package
        that is missing.

    Example:
        >>> import headscope
        >>> headscope.environment().python.startswith("3.")
        True
    """
    return Environment(
        python=platform.python_version(),
        torch=_version("torch"),
        transformers=_version("transformers"),
        huggingface_hub=_version("huggingface_hub"),
        safetensors=_version("safetensors"),
    )


def surroundings() -> Surroundings:
    """Versions and the Hub's settings, for a bug report; no secrets."""
    from headscope.checkpoints.settings import read_settings

    return Surroundings(environment(), read_settings())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
