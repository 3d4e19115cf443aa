"""What a row of the table of states is: a real save, and what headscope has to say of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement


@dataclass(frozen=True)
class Made:
    """What a tool left in a folder.

    `model` is whose weights the repair has to give back, `cls` the class that loads them (default: that of the model).
    `at` is what headscope is given, below the folder; `after` is where the repair leaves the checkpoint. `filled` are
    the places in a repair that its reader fills in, and `given` are the options of `headscope repair` for the same.
    `takes` names the model that is meant where the save may mean several: then no code is printed to run.
    `new` are parameters that the save doesn't hold. `values` is False where they can't be compared.
    """

    model: Any = None
    cls: Any = None
    at: str = "."
    after: str = ""
    filled: tuple[tuple[str, str], ...] = ()
    given: tuple[str, ...] = ()
    takes: str = ""
    new: tuple[str, ...] = ()
    values: bool = True
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Entry:
    """A row: `make` saves into an empty folder with the libraries that it `needs`, as `code` says in short.

    `rules` are those of the states that headscope names, `tool` is what it has to call the first of them, and `exits`
    are the exit codes of `inspect` and `check`. `repaired` says whether a repair runs here, or why it does not.
    """

    name: str
    kind: str
    code: str
    make: Callable[[Path], Made]
    needs: tuple[str, ...] = ("torch",)
    rules: tuple[str, ...] = ()
    tool: str = ""
    exits: tuple[int, int] = (0, 1)
    repaired: bool | str = True
    findings: tuple[str, ...] = ()
    said: tuple[str, ...] = field(default=())

    def lacks(self) -> str:
        """What it needs, such as `torch>=2.7`, and is not installed; "" if nothing."""
        return next((text for text in self.needs if not _is_there(Requirement(text))), "")


def _is_there(needed: Requirement) -> bool:
    try:
        return needed.specifier.contains(version(distribution_of(needed.name)), prereleases=True)
    except PackageNotFoundError:
        return False


def distribution_of(name: str) -> str:
    """The distribution that brings a module."""
    return {"sklearn": "scikit-learn", "megatron": "megatron-core"}.get(name, name)


ENTRIES: list[Entry] = []


def entry(name: str, kind: str, code: str, **rest: Any) -> Callable[[Callable[[Path], Made]], Callable[[Path], Made]]:
    """Adds the function below to the table."""

    def add(make: Callable[[Path], Made]) -> Callable[[Path], Made]:
        rules = rest.pop("rules", (kind,) if kind.startswith("HS8") else ())
        ENTRIES.append(Entry(name, kind, code, make, rules=rules, **rest))
        return make

    return add
