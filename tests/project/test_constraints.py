"""constraints.txt: that it is what is installed and tested here, and that the script which writes it sees changes."""

import json
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

script = import_module("refresh_constraints")

TEXT = script.CONSTRAINTS.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def pinned_environment() -> None:
    if script.other_python() or f"transformers=={version('transformers')}" not in TEXT:
        pytest.skip("this is not the environment that is pinned")


def test_the_pins_are_what_is_installed() -> None:
    assert script.fresh_constraints(TEXT).splitlines() == TEXT.splitlines()


def test_another_version_is_put_right_and_what_nothing_needs_goes() -> None:
    changed = TEXT.replace(f"rich=={version('rich')}", "rich==1.0") + "left-over==1.0\n"
    assert changed != TEXT
    assert script.fresh_constraints(changed) == TEXT


def test_extras_of_requirements_are_followed_and_markers_are_heeded() -> None:
    plain = script.needed([Requirement("jsonschema")])
    assert "attrs" in plain
    assert "isoduration" not in plain  # of its extra `format`
    assert script.needed([Requirement("no-such-package; python_version < '3'")]) == {}


def test_newer_versions_are_listed_and_fail_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    pinned = {Requirement(line).name.lower(): line.partition("==")[2] for line in TEXT.splitlines() if "==" in line}
    items = [{"metadata": {"name": name, "version": number}} for name, number in (pinned | {"rich": "999.1"}).items()]
    items += [{"metadata": {"name": "torch", "version": f"{pinned['torch']}+cpu"}}]

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert "--dry-run" in command
        return subprocess.CompletedProcess(command, 0, json.dumps({"install": items}))

    monkeypatch.setattr(script.subprocess, "run", run)
    assert script.main(["--check"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["constraints.txt is what is installed.", "Newer on the index:", f"rich {pinned['rich']} -> 999.1"]


def test_a_stale_file_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "CONSTRAINTS", tmp_path / "constraints.txt")
    monkeypatch.setattr(script, "newer_versions", lambda _: iter(()))
    script.CONSTRAINTS.write_text(TEXT.replace(f"rich=={version('rich')}", "rich==1.0"), encoding="utf-8")
    assert script.main(["--check"]) == 1
    assert "-rich==1.0" in capsys.readouterr().out
    assert script.main([]) == 0
    assert script.CONSTRAINTS.read_text(encoding="utf-8") == TEXT
