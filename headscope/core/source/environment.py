"""What surrounds a run: versions, and the settings as the Hub's client reads them; the token is never shown."""

from __future__ import annotations

import platform
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import cache
from importlib import metadata
from urllib.parse import urlsplit, urlunsplit

from headscope.core.facts import Environment
from headscope.core.facts.environment import OtherPackages, Settings, Surroundings


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
        torch=_installed_version("torch"),
        transformers=_installed_version("transformers"),
        huggingface_hub=_installed_version("huggingface_hub"),
        safetensors=_installed_version("safetensors"),
    )


def surroundings() -> Surroundings:
    """Reads versions and the Hub's settings for a bug report; no secrets."""
    names = (field.name for field in fields(OtherPackages))
    return Surroundings(
        environment(), read_settings(), OtherPackages(**{name: _installed_version(name) for name in names})
    )


@cache
def _installed_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def default_torch() -> AbstractContextManager[None]:
    """Sets PyTorch to its defaults inside the block, if it was imported; see `upstream.torch.as_by_default`."""
    if sys.modules.get("torch") is None:
        return nullcontext()
    from headscope.core.upstream.torch import as_by_default

    return as_by_default()


def read_settings() -> Settings:
    """Reads the settings of this process."""
    from huggingface_hub import constants, get_token

    return Settings(
        platform=platform.platform(),
        hf_home=str(constants.HF_HOME),
        hf_endpoint=mask_credentials(constants.ENDPOINT),
        hf_hub_offline=bool(constants.HF_HUB_OFFLINE),
        hf_hub_cache=str(constants.HF_HUB_CACHE),
        # Only whether there is a token: the text is made to be pasted into an issue.
        token_set=get_token() is not None,
    )


def mask_credentials(url: str) -> str:
    """Masks what a proxy or a server would take for a password in `url`.

    >>> mask_credentials("https://me:secret@hub.example/api?key=1")
    'https://***@hub.example/api?***'
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    netloc = f"***@{host}" if "@" in parts.netloc else host
    return urlunsplit(parts._replace(netloc=netloc, query="***" if parts.query else "", fragment=""))
