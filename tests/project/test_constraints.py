"""constraints/tested.txt is what is installed and tested here, and the script which writes it sees changes."""

import json
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from scripts.releases import refresh_constraints as script

ROOT = Path(__file__).resolve().parents[2]

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
    assert shown == [
        "constraints/tested.txt is what is installed.",
        "Newer on the index:",
        f"rich {pinned['rich']} -> 999.1",
    ]


def test_a_stale_file_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "CONSTRAINTS", tmp_path / "constraints.txt")
    monkeypatch.setattr(script, "HASHED", tmp_path / "requirements.txt")
    monkeypatch.setattr(script, "hashed_requirements", lambda: "rich==1.0 --hash=sha256:0\n")
    monkeypatch.setattr(script, "newer_versions", lambda _: iter(()))
    script.CONSTRAINTS.write_text(TEXT.replace(f"rich=={version('rich')}", "rich==1.0"), encoding="utf-8")
    assert script.main(["--check"]) == 1
    assert "-rich==1.0" in capsys.readouterr().out
    assert script.main([]) == 0
    assert script.CONSTRAINTS.read_text(encoding="utf-8") == TEXT
    assert script.HASHED.read_text(encoding="utf-8").startswith("rich==1.0")


def test_the_files_with_digests_are_those_of_the_pins() -> None:
    lines = [line for line in script.HASHED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    pins = {canonicalize_name(pin.name): str(pin.specifier) for pin in map(Requirement, TEXT.splitlines()[1:])}
    found = {}
    for line in lines:
        pin, _, digest = line.partition(" --hash=sha256:")
        assert re.fullmatch(r"[0-9a-f]{64}", digest), line
        found[canonicalize_name(Requirement(pin).name)] = f"=={Version(pin.partition('==')[2]).public}"
    assert found == pins
