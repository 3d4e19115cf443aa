"""What a row of the table of states is: a real save, and what headscope has to say of it."""

from collections.abc import Callable
from dataclasses import dataclass
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
    """

    model: Any = None
    cls: Any = None
    at: str = "."
    after: str = ""
    filled: tuple[tuple[str, str], ...] = ()
    given: tuple[str, ...] = ()
    takes: str = ""


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
    said: tuple[str, ...] = ()

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
_UNREADABLE, _NO_WEIGHTS = (3, 3), (3, 1)
_USUAL: dict[str, dict[str, Any]] = {
    "HS803": {"tool": "PEFT"},
    "HS804": {"tool": "DeepSpeed", "exits": _NO_WEIGHTS},
    "HS805": {"tool": "torch.distributed.checkpoint", "exits": _NO_WEIGHTS},
    "HS806": {"exits": _UNREADABLE, "repaired": "needs Megatron Bridge and a GPU"},
    "HS807": {"exits": _NO_WEIGHTS},
    "HS808": {"tool": "Transformers' Trainer", "exits": _UNREADABLE},
    "HS809": {"exits": _UNREADABLE},
    "HS810": {"exits": _UNREADABLE, "repaired": "needs transformers<5"},
    "HS811": {"exits": _UNREADABLE, "repaired": "needs git-lfs and the remote"},
    "HS812": {"exits": _UNREADABLE, "repaired": "`hf download` needs the Hub"},
    "clean": {"exits": (0, 0)},
    "export": {"exits": _UNREADABLE, "repaired": "an export is not for training"},
}
"""What is the same in the rows of a kind, where they say nothing else."""


def entry(name: str, kind: str, code: str, **rest: Any) -> Callable[[Callable[[Path], Made]], Callable[[Path], Made]]:
    """Adds the function below to the table."""

    def add(make: Callable[[Path], Made]) -> Callable[[Path], Made]:
        rules = (kind,) if kind.startswith("HS8") else ()
        ENTRIES.append(Entry(name, kind, code, make, **({"rules": rules} | _USUAL.get(kind, {}) | rest)))
        return make

    return add
