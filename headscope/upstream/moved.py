"""What is raised where a library is no longer as headscope knows it."""

from importlib import metadata

from headscope.errors import Unsupported


def moved(package: str, what: str) -> Unsupported:
    """The error to raise: `what` is gone from the installed version of `package`, or has another form."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        version = "(version unknown)"
    return Unsupported(
        f"{package} {version} is not as headscope knows it: {what}",
        f"update headscope, or install a {package} that it was tested with (see the table of versions in the docs)",
    )
