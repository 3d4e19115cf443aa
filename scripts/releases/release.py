"""Builds a release in dist/: the sdist and the wheel, an SBOM, and SHA256SUMS. Run by `make release`.

    python -m scripts.releases.release SBOM_TOOL [--rehearse]

Everything is built twice by the pinned build backend, and both have to be the same byte for byte. SBOM_TOOL is the
program `cyclonedx-py`; the SBOM names the tested versions of what the wheel needs. With `--rehearse`, the
wheel is then installed from an index on this machine, with the digests of SHA256SUMS, into a separate environment, and
run there. Exits with 1 if anything isn't as it should be. Publishing is the workflow's task.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import tomllib
import venv
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from scripts.releases.refresh_constraints import needed

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
SUMS = "SHA256SUMS"


def main() -> int:
    """Builds, checks and describes; prints each digest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sbom_tool")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    built = _build(DIST)
    with tempfile.TemporaryDirectory() as place:
        again = _build(Path(place))
        differing = [name for name in built | again if built.get(name) != again.get(name)]
    if differing or len(built) != 2:
        print(f"two builds differ: {', '.join(differing) or 'other files than an sdist and a wheel'}")
        return 1
    files = [str(DIST / name) for name in built]
    _run(sys.executable, "-m", "twine", "check", "--strict", *files)
    _run(sys.executable, "-m", "check_wheel_contents", *(name for name in files if name.endswith(".whl")))
    sbom = _describe(options.sbom_tool)
    sums = built | {sbom.name: _digest(sbom)}
    (DIST / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())), encoding="utf-8")
    print((DIST / SUMS).read_text(encoding="utf-8"), end="")
    return _rehearse(built) if options.rehearse else 0


def _run(*command: str, folder: Path = ROOT, **options: Any) -> str:
    """What a program prints. Raises SystemExit where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def _build(folder: Path) -> dict[str, str]:
    """The digests of the sdist and the wheel, by name; what was in the folder before is removed."""
    folder.mkdir(exist_ok=True)
    for old in (path for path in folder.iterdir() if path.is_file()):
        old.unlink()
    commit = subprocess.run(["git", "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False, cwd=ROOT)
    moment = {"SOURCE_DATE_EPOCH": commit.stdout.strip()} if commit.stdout.strip() else {}
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), env=os.environ | moment)
    return {path.name: _digest(path) for path in sorted(folder.iterdir())}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _describe(tool: str) -> Path:
    """The SBOM: the dependencies of the wheel and theirs, in the pinned versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = needed([Requirement(line) for line in project["dependencies"]])
    pins = (f"{name}=={Version(item.version).public}" for name, item in sorted(found.items()))
    path = DIST / f"headscope-{project['version']}.cdx.json"
    _run(
        tool, "requirements", "-", "--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "application",
        "--output-reproducible", "--of", "JSON", "-o", str(path), input="\n".join(pins),
    )  # fmt: skip
    return path


class _Silent(SimpleHTTPRequestHandler):
    """A server of files that prints nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


def _rehearse(built: dict[str, str]) -> int:
    """Installs the wheel from an index on this machine, by its digest, and runs it. Raises SystemExit on failure."""
    (wheel,) = (name for name in built if name.endswith(".whl"))
    with tempfile.TemporaryDirectory() as place:
        index = Path(place) / "index" / "simple" / "headscope"
        index.mkdir(parents=True)
        links = "".join(f'<a href="{name}#sha256={digest}">{name}</a>\n' for name, digest in built.items())
        (index / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>", encoding="utf-8")
        for name in built:
            (index / name).write_bytes((DIST / name).read_bytes())
        handler = partial(_Silent, directory=str(index.parent.parent))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            said = _install(Path(place), f"http://127.0.0.1:{server.server_address[1]}/simple", wheel, built[wheel])
            server.shutdown()
    print(said)
    return 0


def _install(place: Path, index: str, wheel: str, digest: str) -> str:
    """What the installed command says. Its dependencies are those of the environment that runs this script."""
    venv.create(place / "env", with_pip=False)
    python = str(place / "env" / "bin" / "python")
    (site_packages,) = (place / "env").glob("lib/python3*/site-packages")
    own = next(path for path in sys.path if path.endswith("site-packages"))
    (site_packages / "lent.pth").write_text(f"{own}\n", encoding="utf-8")
    lock = place / "lock.txt"
    version = wheel.split("-")[1]
    lock.write_text(f"headscope=={version} --hash=sha256:{digest}\n", encoding="utf-8")
    _run(
        sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--force-reinstall",
        "--require-hashes", "--index-url", index, "-r", str(lock), env=_without_indexes(),
    )  # fmt: skip
    command = str(place / "env" / "bin" / "headscope")
    where = _run(python, "-c", "import headscope; print(headscope.__file__)", folder=place).strip()
    if not where.startswith(str(site_packages)):
        raise SystemExit(f"the installed headscope is not the one that runs: {where}")
    shown = ("inspect", "roberta-base", "--num-labels", "3", "--offline", "-q")
    return _run(command, "--version", folder=place) + _run(command, *shown, folder=place)


def _without_indexes() -> dict[str, str]:
    """The environment without further indexes, which pip would ask too."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return kept | {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


if __name__ == "__main__":
    sys.exit(main())
