"""An import that fails inside another package: which package it is, what it doesn't fit, and what mends it."""

import re
from collections.abc import Iterator
from importlib import metadata
from types import TracebackType

from headscope.errors import HeadscopeError, Unsupported, first_line
from headscope.facts.results.environment import package_version

_PIN = re.compile(r"(?P<package>[\w.-]+)\s*\(?==\s*(?P<version>[\d.]+)\)?\s*(;.*)?")
_OURS = "headscope"


def fault_of_import(err: BaseException) -> HeadscopeError | None:
    """What a failed import says of the installation; None for an exception that doesn't come from an import."""
    chain = list(_chain(err))
    broken = next((found for one in reversed(chain) if (found := _package_importing(one)) is not None), None)
    if broken is not None:
        return _broken(broken, next(one for one in reversed(chain) if _package_importing(one) == broken))
    missing = err.name.partition(".")[0] if isinstance(err, ModuleNotFoundError) and err.name else _OURS
    return None if missing == _OURS else Unsupported(f"{missing} is not installed", f"run `pip install {missing}`")


def _chain(err: BaseException | None) -> Iterator[BaseException]:
    """An exception and those that it came from; Transformers raises its own error for every failed import."""
    while err is not None:
        yield err
        err = err.__cause__ or (None if err.__suppress_context__ else err.__context__)


def _package_importing(err: BaseException) -> str | None:
    """The package whose module was being imported when an exception was raised; None for none but our own."""
    names = (
        str(frame.tb_frame.f_globals.get("__name__"))
        for frame in _frames(err.__traceback__)
        if frame.tb_frame.f_code.co_name == "<module>"
    )
    packages = [name.partition(".")[0] for name in names]
    foreign = [name for name in packages if name not in (_OURS, "__main__", "None")]
    return foreign[-1] if foreign and packages[-1] != _OURS else None


def _frames(found: TracebackType | None) -> Iterator[TracebackType]:
    while found is not None:
        yield found
        found = found.tb_next


def _broken(package: str, err: BaseException) -> Unsupported:
    version = package_version(package)
    reason = first_line(err) if isinstance(err, ImportError) else f"{type(err).__name__}: {first_line(err)}"
    message = f"{package} {version} cannot be imported ({reason})".replace("  ", " ")
    unmet = [(name, pin, found) for name, pin in _pins(package) if not _fits(found := package_version(name), pin)]
    if unmet:
        name, pin, found = unmet[0]
        message += f": it was built for {name} {pin}, and {name} {found or '(none)'} is installed"
        command = f"pip install {name}=={_public(found)} {package}" if found else f"pip install {name}=={pin}"
    else:
        command = f"pip install --upgrade --force-reinstall {package}"
    optional = "" if package in _requirements(_OURS) else f"; or `pip uninstall {package}`, if nothing else needs it"
    return Unsupported(message, f"run `{command}`{optional}")


def _pins(package: str) -> Iterator[tuple[str, str]]:
    """The packages of which a package needs one version."""
    for line in _required(package):
        found = _PIN.fullmatch(line)
        if found is not None and "extra" not in line:
            yield found["package"], found["version"]


def _fits(installed: str, pin: str) -> bool:
    return _public(installed) == pin


def _public(version: str) -> str:
    """A version without what was built for: `2.13.0+cpu`."""
    return version.partition("+")[0]


def _requirements(package: str) -> frozenset[str]:
    names = (re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in _required(package) if "extra" not in line)
    return frozenset(name.lower().replace("-", "_") for name in names)


def _required(package: str) -> list[str]:
    try:
        return metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return []
