"""`headscope cache`: what it counts, and that `--clear` removes headscope's files only."""

from pathlib import Path

import pytest

from headscope.checks.facts import BaseNumbers, RuleEvidence
from headscope.core.facts.stored.tokenizer import TokenizerFacts
from headscope.core.facts.trial import RunTrial
from headscope.core.source.storage.cache import Cache, StoredFile
from headscope.core.source.structure import Remembered
from headscope.errors import ExitCode
from headscope.slices.lookup import disk
from tests.cli.command import Cli

REPORT = f"{'a' * 40}-remembered.json"
EVIDENCE = f"{'b' * 40}-{'0' * 16}-ruleevidence.json"
NUMBERS = f"{'c' * 40}-{'0' * 16}-base-basenumbers.json"
OLD = f"{'d' * 40}-report.json"
UNFINISHED = f".{REPORT}.ab_cd012"
OWN = {REPORT: 10, EVIDENCE: 20, NUMBERS: 30, OLD: 40, UNFINISHED: 50, "key": 32}
FOREIGN = ("notes.json", f"{'A' * 40}-remembered.json", f"{REPORT}.bak", f"x{REPORT}", f"{'a' * 39}-remembered.json")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("HEADSCOPE_CACHE", str(folder))
    return folder


@pytest.fixture
def full(place: Path) -> Path:
    for name, size in OWN.items():
        (place / name).write_bytes(b"x" * size)
    return place


def names(folder: Path) -> set[str]:
    return {item.name for item in folder.iterdir()}


def test_it_counts_every_kind_of_entry(full: Path, cli: Cli) -> None:
    document = cli.json("cache")
    assert (document["entries"], document["bytes"], document["cleared"]) == (len(OWN), sum(OWN.values()), False)
    assert document["kinds"] == [
        {"name": "reports", "entries": 2, "bytes": 60},
        {"name": "evidence", "entries": 1, "bytes": 20},
        {"name": "numbers", "entries": 1, "bytes": 30},
        {"name": "key", "entries": 1, "bytes": 32},
        {"name": "others", "entries": 1, "bytes": 40},
    ]
    assert set(OWN) == names(full)


def test_every_kind_of_entry_is_explained(place: Path, cli: Cli) -> None:
    for kind in disk._KINDS:
        (place / ("key" if kind == "key" else f"{'a' * 40}-{kind}.json")).write_bytes(b"x" * 32)
    (place / OLD).write_bytes(b"x" * 32)
    shown = cli("cache").out.splitlines()
    for name in (*disk._KINDS.values(), "others"):
        (line,) = (line for line in shown if line.startswith(name))
        assert "1 file, " in line and len(line.split()) > 6


def test_what_is_stored_has_a_name_for_its_kind_and_the_name_of_an_entry(place: Path) -> None:
    kinds = (Remembered, RuleEvidence, BaseNumbers, RunTrial)
    assert {kind.__name__.lower() for kind in kinds} | {"key"} == set(disk._KINDS)
    Cache(place).save("e" * 40, TokenizerFacts("right", None, None))
    usage = disk.disk_usage()
    assert [(kind.name, kind.entries) for kind in usage.kinds] == [("key", 1), ("others", 1)]
    assert not any(gap.topic == "other files" for gap in usage.not_read)


def test_clearing_removes_every_file_of_headscope_and_says_how_much(full: Path, cli: Cli) -> None:
    document = cli.json("cache", "--clear")
    assert (document["entries"], document["bytes"], document["cleared"]) == (len(OWN), sum(OWN.values()), True)
    assert names(full) == set()
    assert cli.json("cache", "--clear")["entries"] == 0


def test_clearing_keeps_what_is_not_headscopes_and_a_key_beside_it(full: Path, cli: Cli) -> None:
    for name in FOREIGN:
        (full / name).write_text("mine")
    (full / "folder").mkdir()
    (full / "folder" / REPORT).write_text("mine")
    assert "another program" in cli("cache", "--clear").out
    assert names(full) == {*FOREIGN, "folder", "key"}
    assert (full / "folder" / REPORT).read_text() == "mine"


def test_clearing_follows_no_link_in_the_folder(place: Path, tmp_path: Path) -> None:
    target, folder = tmp_path / "precious", tmp_path / "elsewhere"
    target.write_text("mine")
    folder.mkdir()
    (folder / REPORT).write_text("mine")
    (place / REPORT).symlink_to(target)
    (place / EVIDENCE).symlink_to(folder)
    usage = disk.disk_usage(clear=True)
    assert usage.entries == 0
    assert (target.read_text(), (folder / REPORT).read_text()) == ("mine", "mine")
    assert (place / REPORT).is_symlink()


def test_a_folder_that_is_a_link_is_shown_and_not_cleared(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    link = tmp_path / "link"
    link.symlink_to(full)
    monkeypatch.setenv("HEADSCOPE_CACHE", str(link))
    assert cli.json("cache")["entries"] == len(OWN)
    assert f"HEADSCOPE_CACHE={full}" in cli("cache", "--clear", code=ExitCode.USAGE).err
    assert names(full) == set(OWN)


def test_a_key_of_another_size_is_not_headscopes(place: Path) -> None:
    (place / "key").write_text("-----BEGIN PRIVATE KEY-----")
    disk.disk_usage(clear=True)
    assert (place / "key").exists()


def test_what_cannot_be_removed_is_reported(full: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    def refuse(folder: object, file: StoredFile) -> None:
        if file.kind == "remembered":
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(disk, "remove_stored", refuse)
    out, _ = cli("cache", "--clear", code=ExitCode.UNDETERMINED)
    assert "4 files, 122 bytes" in out.splitlines()[0]
    assert "cache: 2 files" in out and ": Operation not permitted" in out


def test_a_folder_that_cannot_be_read_is_not_an_empty_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "file"))
    assert "empty" not in cli("cache", "-q", code=ExitCode.UNDETERMINED).out
    cli("cache", "--clear", code=ExitCode.UNDETERMINED)


def test_no_folder_is_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "none"))
    assert "empty" in cli("cache", "-q").out
    assert not (tmp_path / "none").exists()


def test_the_screen_names_the_folder_and_what_was_not_looked_at(
    full: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("HEADSCOPE_NO_CACHE", "1")
    out, _ = cli("cache")
    assert out.startswith("The cache holds 6 files, 182 bytes\n")
    assert str(full) in out.replace("\n             ", "")
    assert "`hf cache ls`" in out and "HEADSCOPE_NO_CACHE" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_cleared_cache_is_used_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fact = TokenizerFacts("right", None, None)
    Cache(place).save("f" * 40, fact)
    disk.disk_usage(clear=True)
    assert Cache(place).load(TokenizerFacts, "f" * 40) is None
    Cache(place).save("f" * 40, fact)
    assert Cache(place).load(TokenizerFacts, "f" * 40) == fact
