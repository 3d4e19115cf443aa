"""What surrounds a run: versions, and the settings as the Hub's client reads them; the token is never shown."""

from __future__ import annotations

import platform
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import cache
from importlib import metadata
from urllib.parse import urlsplit, urlunsplit

from headscope.facts import Environment
from headscope.facts.results.environment import OtherPackages, Settings, Surroundings


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
    names = (field.name for field in fields(OtherPackages))
    return Surroundings(environment(), read_settings(), OtherPackages(**{name: _version(name) for name in names}))


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def default_torch() -> AbstractContextManager[None]:
    """Inside, PyTorch is as it is by default, where it was imported; see `upstream.torch.as_by_default`."""
    if sys.modules.get("torch") is None:
        return nullcontext()
    from headscope.upstream.torch import as_by_default

    return as_by_default()


def read_settings() -> Settings:
    """The settings of this process."""
    from huggingface_hub import constants, get_token

    return Settings(
        platform=platform.platform(),
        hf_home=str(constants.HF_HOME),
        hf_endpoint=mask_credentials(constants.ENDPOINT),
        hf_hub_offline=bool(constants.HF_HUB_OFFLINE),
        hf_hub_cache=str(constants.HF_HUB_CACHE),
        token_set=get_token() is not None,
    )


def mask_credentials(url: str) -> str:
    """`url` without what a proxy or server would take for a password.

    >>> mask_credentials("https://me:secret@hub.example/api?key=1")
    'https://***@hub.example/api?***'
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    netloc = f"***@{host}" if "@" in parts.netloc else host
    return urlunsplit(parts._replace(netloc=netloc, query="***" if parts.query else "", fragment=""))
