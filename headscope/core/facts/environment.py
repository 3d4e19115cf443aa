"""What surrounds a run: the versions of headscope and other packages, and the Hub's settings; no secrets."""

from dataclasses import dataclass
from functools import cache
from importlib import metadata


@cache
def tool_version() -> str:
    """Gives the version of headscope; "0+unknown" if it is not installed."""
    return package_version("headscope") or "0+unknown"


@cache
def package_version(package: str) -> str:
    """Reads the version of a package without importing it; "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@cache
def documentation_address() -> str:
    """Gives the site that the package names in `project.urls`, with a slash at the end; "" if it names none."""
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
    """The version of Python."""
    torch: str
    """The version of PyTorch."""
    transformers: str
    """The version of Transformers."""
    huggingface_hub: str
    """The version of the Hub's client."""
    safetensors: str
    """The version of safetensors."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that decide where checkpoints come from."""

    platform: str
    """The operating system."""
    hf_home: str
    """The Hub's folder."""
    hf_endpoint: str
    """The Hub's address, with credentials masked."""
    hf_hub_offline: bool
    """Whether `HF_HUB_OFFLINE` forbids the network."""
    hf_hub_cache: str
    """The Hub's cache."""
    token_set: bool
    """Whether there is a token; it is not shown."""


@dataclass(frozen=True, slots=True)
class OtherPackages:
    """Versions of what Transformers imports where it is installed; a version that doesn't fit breaks every import."""

    torchvision: str
    """The version of torchvision."""
    torchaudio: str
    """The version of torchaudio."""
    accelerate: str
    """The version of Accelerate."""
    peft: str
    """The version of PEFT."""
    timm: str
    """The version of timm."""
    sentence_transformers: str
    """The version of sentence-transformers."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that `env` tells."""

    environment: Environment
    settings: Settings
    """The settings that decide where checkpoints come from."""
    packages: OtherPackages
    """Versions of what Transformers imports where it is installed."""
