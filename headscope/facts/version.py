"""The tool's own version, from its installed metadata."""

from importlib import metadata


def tool_version() -> str:
    """The version of headscope, "0+unknown" where it is not installed."""
    try:
        return metadata.version("headscope")
    except metadata.PackageNotFoundError:
        return "0+unknown"
