"""Runs a part of the tests on other versions of Transformers and of the Hub's client, and writes the table in the docs.

`python scripts/matrix.py [VERSION ...] [--heads]` makes an environment below `.matrix/` for each version (again only
where it is absent), which takes PyTorch and the tools for tests from the environment that runs this script. Only a run
of all versions writes the table. With `--heads` it keeps what `headscope heads --json` says there in `docs/versions/`,
instead of the tests; `scripts/write_changes.py` makes `docs/changes.md` of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "versions.md"
KEPT = ROOT / "docs" / "versions"
VERSIONS = ("5.0.0", "5.5.4", "5.10.4", metadata.version("transformers"))
"""Transformers: the oldest that is supported, two between, the one that everything else is tested on."""
CLIENTS = {"5.0.0": "1.3.0"}
"""The Hub's client beside a version, where it isn't the newest that this Transformers admits: the oldest of all."""
TESTS = (
    "tests/upstream", "tests/model/loading/test_loading_against_transformers.py", "tests/model/test_model_request.py",
    "tests/trace/pooling/test_families.py", "tests/trace/record/test_running.py", "tests/test_known_checkpoints.py",
    "tests/checkpoints/hub/test_hub.py",
)  # fmt: skip
_COUNTS = re.compile(r"\d+ (?:passed|failed|skipped|errors?)\b")
_OPENING = "<!-- written by scripts/matrix.py -->"


@dataclass(frozen=True, slots=True)
class Row:
    """What one environment held, and how the tests ended in it."""

    transformers: str
    huggingface_hub: str
    torch: str
    python: str
    said: str
    passed: bool


def main() -> int:
    """Writes the table, or keeps the heads; 1 where pytest did not end with 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*")
    parser.add_argument("--heads", action="store_true")
    options = parser.parse_args()
    rows = []
    for version in dict.fromkeys(options.versions or VERSIONS):
        python = _environment(version)
        if options.heads:
            _keep_heads(python, version)
            print(f"Transformers {version}: kept", flush=True)
            continue
        rows.append(_tested(python))
        print(f"Transformers {version}: {rows[-1].said}", flush=True)
    if rows and not options.versions:
        _write_table(rows)
    return int(not all(row.passed for row in rows))


def _environment(version: str) -> Path:
    """The interpreter of an environment with that Transformers."""
    folder = ROOT / ".matrix" / version
    python = folder / "bin" / "python"
    if not (folder / ".done").exists():
        venv.create(folder, clear=True, with_pip=True)
        own = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        # Behind its own packages, those of this environment: PyTorch is large, and the same everywhere.
        Path(own, "zz_shared.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        wanted = [f"transformers=={version}"]
        wanted += [f"huggingface_hub=={CLIENTS[version]}"] if version in CLIENTS else []
        subprocess.run([python, "-m", "pip", "install", "-q", "--ignore-installed", "--no-deps", wanted[0]], check=True)
        needed = [item for item in _requirements(python) if item.startswith(("huggingface", "tokenizers"))]
        subprocess.run([python, "-m", "pip", "install", "-q", *needed, *wanted[1:]], check=True)
        (folder / ".done").touch()
    return python


def _requirements(python: Path) -> list[str]:
    code = "import json; from importlib import metadata; print(json.dumps(metadata.requires('transformers')))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return [item for item in json.loads(done.stdout) if "extra ==" not in item]


def _tested(python: Path) -> Row:
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, cwd=ROOT, env=_settings(), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout[-6000:] + done.stderr[-2000:])
    last = (done.stdout.splitlines() or ["no output"])[-1]
    said = ", ".join(_COUNTS.findall(last)) or last
    transformers, client, torch = (_version(python, name) for name in ("transformers", "huggingface_hub", "torch"))
    return Row(transformers, client, torch, platform.python_version(), said, done.returncode == 0)


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "CI"} | {"PYTHONPATH": str(ROOT)}


def _version(python: Path, package: str) -> str:
    code = f"from importlib import metadata; print(metadata.version({package!r}))"
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
    pooling = head["pooling"]
    return {
        "kind": pooling["kind"],
        "rule": pooling["rule"],
        "positions": [part["positions"] | {"of": part["sources"]} for part in pooling["parts"]],
        "formula": head["formula"],
        "parameters": {item["name"]: item["shape"] for item in head["parameters"]},
        "not used": [item["name"] for item in head["parameters"] if not item["live"]],
        "loss": head["loss"],
    }


def _write_table(rows: list[Row]) -> None:
    """The table below the mark of the page."""
    lines = [
        "| Transformers | huggingface_hub | PyTorch | Python | contract and truth tests |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.transformers} | {row.huggingface_hub} | {row.torch} | {row.python} | {row.said} |" for row in rows
    ]
    before = PAGE.read_text(encoding="utf-8").partition(_OPENING)[0]
    PAGE.write_text(f"{before}{_OPENING}\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
