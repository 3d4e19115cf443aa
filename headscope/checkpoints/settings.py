"""The Hub's settings as its own client reads them; credentials are masked, the token is never shown."""

import platform
from urllib.parse import urlsplit, urlunsplit

from headscope.facts.environment import Settings


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
