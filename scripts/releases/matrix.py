"""Runs a part of the tests on other Pythons and on other versions of the libraries, and writes the table in the docs.

`python -m scripts.releases.matrix [NAME ...] [--heads]` makes an environment below `.matrix/` for each row (again
only where it is absent). Where only Transformers, PEFT or the Hub's client differ, it takes the rest from the
environment that runs this script; with another Python or PyTorch it is whole, and the tests of the states run too.
With sentence-transformers it runs those of the files that this library writes and of the objects that it makes. A name
is that of a row, such as `5.0.0` or `python3.13`: with names, the other rows of the table stay as they are, with the
day of their run. With `--heads` it keeps what `headscope heads --json` says there in `docs/versions/`, instead of
the tests; `python -m scripts.generate changes` makes `docs/changes.md` of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "versions.md"
KEPT = ROOT / "docs" / "versions"
NEWEST = metadata.version("transformers")
"""The Transformers that everything else is tested on."""
TESTS = (
    "tests/upstream", "tests/model/loading/test_loading_against_transformers.py", "tests/model/test_model_request.py",
    "tests/model/loading/test_adapter_shapes_against_peft.py", "tests/trace/pooling/test_families.py",
    "tests/trace/record/test_running.py", "tests/test_known_checkpoints.py", "tests/checkpoints/hub/test_hub.py",
    "tests/api/lookup/test_shipped.py::test_a_shipped_structure_is_what_an_examination_gives",
    "tests/api/lookup/test_shipped.py::test_a_shipped_class_is_what_an_examination_gives",
)  # fmt: skip
SENTENCES = (
    "tests/upstream", "tests/checkpoints/test_sentence.py", "tests/api/test_sentence_pipelines.py",
    "tests/api/test_rerankers.py", "tests/api/loaded/test_wrapped_libraries.py",
    "tests/integrations/test_other_trainers.py", "tests/serving/test_facts_against_engines.py",
)  # fmt: skip
"""What reads the files of sentence-transformers, and its objects."""
STATES = "tests/states"
"""What Python and PyTorch write; Transformers changes nothing in it."""
_COUNTS = re.compile(r"\d+ (?:passed|failed|skipped|errors?)\b")
_OPENING = "<!-- written by scripts/releases/matrix.py -->"


@dataclass(frozen=True, slots=True)
class Combination:
    """What differs from the environment that runs this script; "" for what is the same."""

    transformers: str = NEWEST
    huggingface_hub: str = ""
    peft: str = ""
    sentence_transformers: str = ""
    torch: str = ""
    python: str = ""

    @property
    def name(self) -> str:
        """Its folder below `.matrix/`."""
        names = ("peft", "sentence_transformers", "torch", "python")
        given = [f"{name.replace('_', '-')}{getattr(self, name)}" for name in names if getattr(self, name)]
        return "-".join(given) or self.transformers

    @property
    def is_whole(self) -> bool:
        """Whether its environment shares nothing with the one that runs this script."""
        return bool(self.torch or self.python)

    def pins(self) -> tuple[str, ...]:
        """The requirements for pip."""
        names = ("transformers", "huggingface_hub", "peft", "sentence_transformers", "torch")
        return tuple(f"{name}=={getattr(self, name)}" for name in names if getattr(self, name))

    def tests(self) -> tuple[str, ...]:
        """The files and folders that are run."""
        if self.sentence_transformers:
            return SENTENCES
        return (*TESTS, STATES) if self.is_whole else TESTS


COMBINATIONS = (
    Combination("5.0.0", huggingface_hub="1.3.0"), Combination("5.5.4"), Combination("5.10.4"),
    Combination("5.20.2"), Combination("5.22.2"), Combination("5.23.0"), Combination(),
    Combination(peft="0.18.0"), Combination(sentence_transformers="6.2.0"),
    Combination(torch="2.6.0"), Combination(torch="2.15.0"),
    Combination(python="3.12"), Combination(python="3.13"), Combination(python="3.14"),
)  # fmt: skip
"""The oldest of each that is supported, what is between, and the newest."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one environment held, and how the tests ended in it; `failed` holds their names."""

    versions: Mapping[str, str]
    said: str
    passed: bool
    failed: tuple[str, ...] = ()
    was_run: bool = True


_COLUMNS = ("transformers", "huggingface_hub", "peft", "torch")


def main() -> int:
    """Writes the table, or keeps the heads; 1 where pytest did not end with 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--heads", action="store_true")
    options = parser.parse_args()
    known = [item.name for item in COMBINATIONS]
    if not {*options.names} <= {*known}:
        parser.error(f"the rows are {', '.join(known)}")
    rows = {}
    for item in COMBINATIONS:
        if options.names and item.name not in options.names:
            continue
        python = _environment(item)
        if options.heads:
            if python is not None and item == Combination(item.transformers, item.huggingface_hub):
                _keep_heads(python, item.transformers)
                print(f"{item.name}: kept", flush=True)
            continue
        absent = f"Python {item.python} was not installed"
        row = rows[item.name] = _tested(python, item.tests()) if python is not None else _not_run(item, absent)
        print(f"{item.name}: {row.said}", *row.failed, sep="\n  ", flush=True)
        _write_table(rows)
    return int(not all(row.passed for row in rows.values()))


def _environment(item: Combination) -> Path | None:
    """The interpreter of its environment; None where this machine has no such Python."""
    folder = ROOT / ".matrix" / item.name
    python = folder / "bin" / "python"
    if not (folder / ".done").exists():
        interpreter = _interpreter(item.python)
        if interpreter is None:
            return None
        subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True)
        if item.is_whole:
            _fill(python, item)
        else:
            _fill_beside(python, item)
        (folder / ".done").touch()
    return python


def _interpreter(version: str) -> str | None:
    """The Python of a version: on the path, or one of pyenv's."""
    if not version:
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    places = [*sorted(root.glob(f"{version}.*/bin/python")), *filter(None, [shutil.which(f"python{version}")])]
    return str(places[0]) if places else None


def _fill(python: Path, item: Combination) -> None:
    """Installs everything, as constraints/tested.txt pins it, but for what the combination says."""
    pins = item.pins()
    own = ["sympy"] if item.torch else []  # an old PyTorch asks for one version of it
    given = {canonicalize_name(name) for name in (*own, *(pin.partition("==")[0] for pin in pins))}
    kept = [
        line for line in (ROOT / "constraints" / "tested.txt").read_text(encoding="utf-8").splitlines()
        if canonicalize_name(line.partition("==")[0]) not in given
    ]  # fmt: skip
    constraints = python.parents[1] / "constraints.txt"
    constraints.write_text("\n".join([*kept, *pins]) + "\n", encoding="utf-8")
    install = [str(python), "-m", "pip", "install", "-q", "-c", str(constraints)]
    subprocess.run([*install, "torch"], check=True)
    subprocess.run([*install, "-e", f"{ROOT}[dev]"], check=True)


def _fill_beside(python: Path, item: Combination) -> None:
    own = _output_of(python, "import sysconfig; print(sysconfig.get_path('purelib'))")
    # Behind its own packages, those of this environment: PyTorch is large, and the same everywhere.
    Path(own, "zz_shared.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    wanted, *others = item.pins()
    subprocess.run([python, "-m", "pip", "install", "-q", "--ignore-installed", "--no-deps", wanted], check=True)
    needed = [line for line in _requirements(python) if line.startswith(("huggingface", "tokenizers"))]
    alone = [pin for pin in others if pin.startswith(("peft", "sentence_transformers"))]
    if alone:
        subprocess.run([python, "-m", "pip", "install", "-q", "--ignore-installed", "--no-deps", *alone], check=True)
    others = [pin for pin in others if pin not in alone]
    subprocess.run([python, "-m", "pip", "install", "-q", *needed, *others], check=True)


def _requirements(python: Path) -> list[str]:
    code = "import json; from importlib import metadata; print(json.dumps(metadata.requires('transformers')))"
    return [item for item in json.loads(_output_of(python, code)) if "extra ==" not in item]


def _tested(python: Path, tests: Sequence[str]) -> Row:
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=_settings(), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout[-6000:] + done.stderr[-2000:])
    lines = done.stdout.splitlines() or ["no output"]
    said = ", ".join(_COUNTS.findall(lines[-1])) or lines[-1]
    summary = done.stdout.partition("short test summary info")[2].splitlines()
    failed = tuple(line.partition(" - ")[0] for line in summary if line.startswith(("FAILED ", "ERROR ")))
    own = {"python": _output_of(python, "import platform; print(platform.python_version())")}
    versions = {name: _output_of(python, _VERSION.format(name)) for name in _COLUMNS} | own
    return Row(versions, said, done.returncode == 0, failed)


def _not_run(item: Combination, reason: str) -> Row:
    """A row whose interpreter is not installed, or that was not requested; it fails a run that has to have all."""
    versions = {name: getattr(item, name) for name in (*_COLUMNS, "python")}
    return Row(versions, f"not run: {reason}", passed=not os.environ.get("CI"), was_run=False)


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "CI"} | {"PYTHONPATH": str(ROOT)}


_VERSION = "from importlib import metadata; print(metadata.version('{}'))"


def _output_of(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _keep_heads(python: Path, version: str) -> None:
    """What `headscope heads --json` says there of each class, without what a comparison of versions can't use."""
    command = [str(python), "-m", "headscope", "heads", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=_settings(), capture_output=True, text=True, check=True)
    write_heads(json.loads(done.stdout)["heads"], version)


def write_heads(heads: list[dict[str, Any]], version: str) -> None:
    """One class a line. Where several model types share a class, the last that is traced speaks for it."""
    kept = {entry["class"]: _kept(entry) for entry in sorted(heads, key=lambda entry: entry["traced"])}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(kept[name], sort_keys=True)}" for name in sorted(kept))
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{version}.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _kept(entry: dict[str, Any]) -> dict[str, Any]:
    head = entry["head"]
    if head is None:
        return {"reason": entry["reason"]}
    pooling, formula = head["pooling"], head["formula"]
    positions, rule = [dict(part["positions"]) for part in pooling["parts"]], pooling["rule"]
    # Data of versions that were looked at earlier don't name what a model puts at a position.
    for item in positions:
        name = item.pop("parameter").rpartition(".")[2]
        if name:
            formula = formula.replace(f"h[{name}]", f"h[{item['index']}]")
            rule = rule.replace(f", where the model puts its {name}", "")
    return {
        "kind": pooling["kind"],
        "rule": rule,
        "positions": [item | {"of": part["sources"]} for item, part in zip(positions, pooling["parts"], strict=True)],
        "formula": formula,
        "parameters": {item["name"]: item["shape"] for item in head["parameters"]},
        "not used": [item["name"] for item in head["parameters"] if not item["live"]],
        "loss": head["loss"],
    }


def _write_table(rows: Mapping[str, Row]) -> None:
    """The table below the mark of the page: these rows as of today, the others as they were."""
    before, _, table = PAGE.read_text(encoding="utf-8").partition(_OPENING)
    kept = {line.split("|")[1].strip(" `"): line for line in table.splitlines() if line.startswith("| `")}
    was_run = {name for name, line in kept.items() if "| not run: " not in line}
    kept |= {name: _line(name, row) for name, row in rows.items() if row.was_run or name not in was_run}
    lines = [
        "| row | Transformers | huggingface_hub | PEFT | PyTorch | Python | contract and truth tests | on |",
        "|---|---|---|---|---|---|---|---|",
        *(kept.get(item.name) or _line(item.name, _not_run(item, "not asked for")) for item in COMBINATIONS),
    ]
    PAGE.write_text(f"{before}{_OPENING}\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


def _line(name: str, row: Row) -> str:
    versions = (row.versions[column] for column in (*_COLUMNS, "python"))
    day = f"{datetime.now(UTC):%Y-%m-%d}" if row.was_run else ""
    return f"| {' | '.join((f'`{name}`', *versions, row.said, day))} |"


if __name__ == "__main__":
    sys.exit(main())
