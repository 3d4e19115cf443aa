"""`hf headscope`: the package that `hf extensions install` would install, called by the installed hf CLI."""

import os
import subprocess
import sys
import sysconfig
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "packaging" / "hf-extension"


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_it_is_the_same_program_of_the_same_version() -> None:
    ours, extension = project(ROOT), project(FOLDER)
    for name in ("version", "requires-python", "license"):
        assert extension[name] == ours[name]
    assert extension["dependencies"] == [ours["name"]]
    assert extension["scripts"] == {f"hf-{name}": target for name, target in ours["scripts"].items()}


def test_hf_calls_the_command_that_the_package_installs(tmp_path: Path) -> None:
    extensions = pytest.importorskip("huggingface_hub.cli.extensions", reason="this hf CLI has no extensions")
    home = tmp_path / "home"
    folder = home / extensions.EXTENSIONS_ROOT.relative_to("~") / "hf-headscope"
    environment = folder / "venv"
    assert run([sys.executable, "-m", "venv", "--without-pip", str(environment)]).returncode == 0
    (site_packages,) = environment.glob("lib/python3*/site-packages")
    (site_packages / "lent.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    installed = run([*pip, "install", "-q", "--no-deps", str(FOLDER)])
    assert installed.returncode == 0, installed.stderr

    extensions.ExtensionManifest(
        owner="OWNER", repo="hf-headscope", repo_id="OWNER/hf-headscope", short_name="headscope",
        executable_path=str(environment / "bin" / "hf-headscope"), type="python", installed_at=datetime.now(UTC),
    ).save(folder)  # fmt: skip
    hf = str(Path(sys.executable).with_name("hf"))
    surroundings = os.environ | {"HOME": str(home), "HF_HUB_DISABLE_UPDATE_CHECK": "1", "HF_HUB_OFFLINE": "1"}
    ran = run([hf, "headscope", "inspect", "roberta-base", "--num-labels", "3", "--offline", "-q"], env=surroundings)
    assert ran.returncode == 0, ran.stderr
    assert "(4 tensors" in ran.stdout.splitlines()[0]
    assert run([hf, "headscope", "inspect", "no-such/model", "--offline"], env=surroundings).returncode == 3
