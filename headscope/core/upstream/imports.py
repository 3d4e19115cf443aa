"""Imports of other packages: the time that slow ones take, and the cause and cure of failed ones."""

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import metadata
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from threading import get_ident
from traceback import walk_tb
from types import ModuleType

from headscope.core.facts.environment import package_version
from headscope.errors import HeadscopeError, Unsupported, first_line

_PIN = re.compile(r"(?P<package>[\w.-]+)\s*\(?==\s*(?P<version>[\d.]+)\)?\s*(;.*)?")
_OURS = "headscope"
_TRACING = frozenset({"torch", "transformers", "accelerate"})
"""What a light installation leaves out."""
_EXTRAS = {"scipy": '"headscope[data]"'}
_SLOW = frozenset({"torch", "transformers"})
Around = Callable[[str], AbstractContextManager[None]]


class ImportTime:
    """Seconds that the slow libraries took in this process, while their imports were watched."""

    seconds = 0.0


@contextmanager
def watched_imports(around: Around = lambda name: nullcontext()) -> Iterator[None]:
    """Runs imports of PyTorch and Transformers by this thread inside of `around(NAME)`, and times them."""
    watch = _Watch(around)
    sys.meta_path.insert(0, watch)
    try:
        yield
    finally:
        sys.meta_path.remove(watch)


class _Watch:
    """Finder of modules of the slow libraries."""

    def __init__(self, around: Around) -> None:
        self._around, self._thread = around, get_ident()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Finds a module of a slow library, with a watched loader; None for others, which the next finder takes."""
        is_watched = name.partition(".")[0] in _SLOW and get_ident() == self._thread
        found = PathFinder.find_spec(name, path, target) if is_watched else None
        if found is not None and found.loader is not None:
            found.loader = _WatchedLoader(found.loader, self._around)
        return found


class _WatchedLoader(Loader):
    """Loader of a module that is timed; the time of a library that another one imports counts once."""

    _is_inside = False

    def __init__(self, loader: Loader, around: Around) -> None:
        self._loader, self._around = loader, around

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None  # the import system made it from one
        module.__loader__ = module.__spec__.loader = self._loader
        if _WatchedLoader._is_inside:
            self._loader.exec_module(module)
            return
        _WatchedLoader._is_inside, start = True, time.perf_counter()
        try:
            with self._around(module.__name__):
                self._loader.exec_module(module)
        finally:
            _WatchedLoader._is_inside = False
            ImportTime.seconds += time.perf_counter() - start


def fault_of_import(err: BaseException) -> HeadscopeError | None:
    """Explains what a failed import says of the installation; None if an exception doesn't come from an import."""
    chain: list[BaseException] = []
    cause: BaseException | None = err
    # Transformers raises its own error for every failed import, with the real one as its cause.
    while cause is not None:
        chain.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    for one in reversed(chain):
        package = _package_importing(one)
        if package is not None:
            return _broken_package_error(package, one)
    missing = err.name.partition(".")[0] if isinstance(err, ModuleNotFoundError) and err.name else _OURS
    if missing in _TRACING:
        return Unsupported(
            f"{missing} is not installed, and headscope doesn't know this without it",
            "run `pip install torch transformers accelerate`, or the command as `uvx --with torch headscope ...`",
        )
    wanted = _EXTRAS.get(missing, missing)
    return None if missing == _OURS else Unsupported(f"{missing} is not installed", f"run `pip install {wanted}`")


def _package_importing(err: BaseException) -> str | None:
    """Finds the package whose module was being imported when an exception was raised; None for none but our own."""
    names = (
        str(frame.f_globals.get("__name__"))
        for frame, _ in walk_tb(err.__traceback__)
        if frame.f_code.co_name == "<module>"
    )
    packages = [name.partition(".")[0] for name in names]
    foreign = [name for name in packages if name not in (_OURS, "__main__", "None")]
    return foreign[-1] if foreign and packages[-1] != _OURS else None


def _broken_package_error(package: str, err: BaseException) -> Unsupported:
    version = package_version(package)
    reason = first_line(err) if isinstance(err, ImportError) else f"{type(err).__name__}: {first_line(err)}"
    message = f"{package} {version} cannot be imported ({reason})".replace("  ", " ")
    pins = (_PIN.fullmatch(line) for line in _read_requirements(package) if "extra" not in line)
    unmet = [
        (pin["package"], pin["version"], found)
        for pin in pins
        if pin is not None and public_version(found := package_version(pin["package"])) != pin["version"]
    ]
    if unmet:
        name, pin, found = unmet[0]
        message += f": it was built for {name} {pin}, and {name} {found or '(none)'} is installed"
        command = f"pip install {name}=={public_version(found)} {package}" if found else f"pip install {name}=={pin}"
    else:
        command = f"pip install --upgrade --force-reinstall {package}"
    needed = (re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in _read_requirements(_OURS) if "extra" not in line)
    is_needed = package in {name.lower().replace("-", "_") for name in needed}
    optional = "" if is_needed else f"; or `pip uninstall {package}`, if nothing else needs it"
    return Unsupported(message, f"run `{command}`{optional}")


def public_version(version: str) -> str:
    """Gives a version without the name of its build: 2.13.0 of 2.13.0+cpu."""
    return version.partition("+")[0]


def _read_requirements(package: str) -> list[str]:
    try:
        return metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return []
