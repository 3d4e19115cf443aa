"""What surrounds a run: the versions of headscope and other packages, and the Hub's settings; no secrets."""

from dataclasses import dataclass
from functools import cache
from importlib import metadata


@cache
def tool_version() -> str:
    """The version of headscope, "0+unknown" where it is not installed."""
    return package_version("headscope") or "0+unknown"


def package_version(package: str) -> str:
    """The version of a package, "" where it is not installed; nothing is imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@cache
def documentation_address() -> str:
    """The site as the package names it in `project.urls`, with a slash at the end; "" where it names none."""
    try:
        listed = metadata.metadata("headscope").get_all("Project-URL") or ()
    except metadata.PackageNotFoundError:
        return ""
    pairs = (entry.partition(",") for entry in listed)
    found = next((url.strip() for name, _, url in pairs if name.strip().lower() == "documentation"), "")
    return f"{found.rstrip('/')}/" if found else ""


@dataclass(frozen=True, slots=True)
class Environment:
    """Versions of everything whose behavior the report depends on."""

    python: str
    torch: str
    transformers: str
    huggingface_hub: str
    safetensors: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that decide where checkpoints come from.

    `hf_endpoint` has any credentials masked; of the token, only `token_set` is reported.
    """

    platform: str
    hf_home: str
    hf_endpoint: str
    hf_hub_offline: bool
    hf_hub_cache: str
    token_set: bool


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that `env` tells."""

    environment: Environment
    settings: Settings
