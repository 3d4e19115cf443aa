"""What surrounds a run: versions, settings."""

import platform
from importlib import metadata

from headscope.facts import Environment
from headscope.facts.settings import Surroundings


def environment() -> Environment:
    """The versions that a report depends on, without importing what they belong to."""
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
