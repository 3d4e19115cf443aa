"""The cache of reports: the second look says the same without torch, and nothing that changes is overlooked."""

import hashlib
import json
import math
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from reports import REPORTS

import headscope
from headscope.core.facts.plain import restore, store
from headscope.core.facts.stored.tokenizer import TokenizerFacts
from headscope.core.source.storage import cache as caching
from headscope.core.source.storage.cache import Cache
from headscope.core.upstream.sources import sources_stamp
from headscope.facts import Report
from tests import warm
from tests.edits import edit_json, edit_tensors

Show = Callable[..., str]
pytestmark = pytest.mark.usefixtures("no_shipped_facts", "own_cache")


def entries(place: Path) -> list[Path]:
    return sorted(place.glob("*.json"))


PROCESS = """
import sys
from headscope.shell import main
code = main(sys.argv[1:])
loaded = [name for name in ("torch", "transformers", "accelerate") if name in sys.modules]
sys.stderr.write(" ".join(loaded))
sys.exit(code)
"""


def in_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process that has imported neither PyTorch nor Transformers before."""
    command = [*warm.python(warm.LIGHT), "-c", PROCESS, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_second_look_imports_no_torch(classifier: Path) -> None:
    first = in_process("inspect", str(classifier), "--prove")
    assert "torch" in first.stderr
    in_process("check", str(classifier), "--for", "inference")
    for arguments in (
        ["check", str(classifier), "--for", "inference"],
        ["check", str(classifier), "--for", "training", "--format", "junit"],
        ["inspect", str(classifier)],
        ["inspect", str(classifier), "--prove", "--json"],
        ["compare", str(classifier), str(classifier)],
    ):
        again = in_process(*arguments)
        assert (again.returncode, again.stderr) == (0, ""), arguments


_USE_CASES = """
import sys
from headscope.shell import main
main(sys.argv[1:])
elsewhere = ("headscope.slices.", "headscope.copies.", "headscope.shared.", "headscope.integrations.")
print("\\n".join(name for name in sys.modules if name.startswith(elsewhere)), file=sys.stderr)
"""


def test_a_check_imports_no_other_use_case(classifier: Path) -> None:
    headscope.check(classifier, cache=True)
    command = [*warm.python(warm.LIGHT, anew=True), "-c", _USE_CASES, "check", str(classifier)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    imported = {".".join(name.split(".")[1:3]) for name in ran.stderr.split()}
    assert imported == {f"shared.{room}" for room in ("labeled", "loaded", "report", "serving", "topics", "trial")}


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"], ["inspect", "--json"], ["inspect", "--prove"], ["check", "--for", "inference"],
        ["check", "--json"], ["check", "--for", "training", "--format", "sarif"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_the_cache_changes_no_output(arguments: list[str], own_cache: Path, classifier: Path, show: Show) -> None:
    command, *options = arguments
    anew = show(command, classifier, "--no-cache", *options)
    assert not entries(own_cache)
    first = show(command, classifier, *options)
    assert entries(own_cache)
    show("check", classifier)  # which verifies, and so replaces what a plain inspect left
    assert show(command, classifier, *options) == first == anew


def test_another_request_is_another_report(classifier: Path, show: Show) -> None:
    assert "classifier" in show("inspect", classifier)
    assert "3x32 -> 5x32" in show("inspect", classifier, "--num-labels", "5")
    assert "3-class" in show("inspect", classifier)
    assert "BertForTokenClassification" in show("inspect", classifier, "--task", "token-classification", "--details")


def test_a_changed_configuration_is_seen(classifier: Path, show: Show) -> None:
    show("inspect", classifier)
    edit_json(classifier / "config.json", {"problem_type": "multi_label_classification"})
    assert "BCEWithLogitsLoss" in show("inspect", classifier, "--details")


def test_changed_numbers_are_seen_though_the_header_is_the_same(classifier: Path, show: Show) -> None:
    show("check", classifier, "--for", "inference")
    edit_tensors(
        classifier / "model.safetensors", lambda state: state | {"classifier.weight": torch.full((3, 32), math.nan)}
    )
    assert "HS501" in show("check", classifier, "--for", "inference", code=1)


def test_a_tokenizer_that_comes_later_is_seen(classifier: Path, show: Show) -> None:
    show("check", classifier)
    (classifier / "tokenizer_config.json").write_text('{"padding_side": "left"}')
    assert "HS303" in show("check", classifier, code=1)


@pytest.mark.parametrize("name", ["sentencepiece.bpe.model", "vocab.spm", "chat_template.jinja", "merges.txt"])
def test_any_file_that_comes_later_or_goes_is_seen(name: str, own_cache: Path, classifier: Path) -> None:
    def seen(**options: Any) -> Any:
        return headscope.check(classifier, "inference", **options)

    (classifier / "tokenizer_config.json").write_text('{"pad_token": "[PAD]", "chat_template": "{{ y }}"}')
    alone, kept = seen(cache=True), len(entries(own_cache))
    (classifier / name).write_text("{{ x }}")
    assert seen(cache=True) == seen(cache=False)
    assert len(entries(own_cache)) > kept
    if name.endswith((".model", ".spm")):  # a vocabulary that headscope doesn't read
        assert seen(cache=True) != alone
    (classifier / name).unlink()
    assert seen(cache=True) == alone == seen(cache=False)


def test_the_command_of_a_repair_is_that_of_the_first_look(classifier: Path, show: Show) -> None:
    file, command = classifier / "model.safetensors", ["check", classifier, "--for", "inference", "--json"]
    edit_tensors(file, lambda state: {f"module.{name}": item for name, item in state.items()})
    first = show(*command, code=1)
    assert f"Run `headscope repair {classifier} -o DIR`" in first
    assert show(*command, code=1) == first


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a family in a Transformers of this test."""
    folder = tmp_path / "transformers" / "models" / "bert"
    folder.mkdir(parents=True)
    monkeypatch.setattr("headscope.core.upstream.sources.folder_of_package", lambda package: tmp_path / package)
    sources_stamp.cache_clear()
    yield folder
    sources_stamp.cache_clear()


def test_changed_sources_of_transformers_are_seen(sources: Path) -> None:
    def key_in_a_process(**config: Any) -> object:
        sources_stamp.cache_clear()
        return caching.versions_key(config)

    (sources / "modeling_bert.py").write_text("one")
    before = key_in_a_process(model_type="bert")
    (sources / "modeling_bert.py").write_text("two")
    assert key_in_a_process(model_type="bert") != before
    assert key_in_a_process(text_config={"model_type": "bert"}) == key_in_a_process(model_type="bert")
    (sources.parent / "gpt2").mkdir()
    of_gpt2 = key_in_a_process(model_type="gpt2")
    (sources / "modeling_bert.py").write_text("three")
    assert key_in_a_process(model_type="gpt2") == of_gpt2
    of_all = key_in_a_process(model_type="gpt2_text")  # no folder of that name
    (sources / "modeling_bert.py").write_text("four")
    assert key_in_a_process(model_type="gpt2_text") != of_all


@pytest.mark.parametrize("model_type", ["x" * 5000, "../..", "a\0b", "", "."])
def test_a_hostile_model_type_and_a_link_to_nowhere_do_not_crash(model_type: str, sources: Path) -> None:
    (sources / ".#modeling_bert.py").symlink_to("user@host.1234")
    assert caching.versions_key({"model_type": model_type})[-1] == (0, 0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "\0" * 100,
        lambda text: "[]",
        lambda text: "{}",
        lambda text: text.replace("classifier", "clossifier"),
        lambda text: text.replace("1", "2"),
        lambda text: "[" * 10_000,
    ],
)
def test_a_damaged_entry_is_as_good_as_none(
    damage: Callable[[str], str], own_cache: Path, classifier: Path, show: Show
) -> None:
    whole = show("check", classifier)
    for entry in entries(own_cache):
        entry.write_text(damage(entry.read_text()))
    assert show("check", classifier) == whole
    assert in_process("check", str(classifier)).stderr == ""  # mended


def test_an_edited_entry_with_a_plain_digest_is_not_believed(own_cache: Path, classifier: Path, show: Show) -> None:
    expected = show("check", classifier, "--for", "inference")
    for file in entries(own_cache):
        entry = json.loads(file.read_text().replace("classifier.weight", "classifier.eight"))
        entry["digest"] = hashlib.sha256(json.dumps(entry["fact"]).encode()).hexdigest()
        file.write_text(json.dumps(entry))
    assert show("check", classifier, "--for", "inference") == expected


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permissions for others")
def test_a_key_that_others_may_have_written_opens_no_cache(own_cache: Path) -> None:
    report = next(iter(REPORTS.values()))()
    Cache(own_cache).save("one", report)
    assert Cache(own_cache).load(type(report), "one") == report
    (own_cache / "key").chmod(0o644)
    assert Cache(own_cache).load(type(report), "one") is None
    (own_cache / "key").chmod(0o600)
    (own_cache / "key").rename(own_cache / "other")
    (own_cache / "key").symlink_to(own_cache / "other")
    assert Cache(own_cache).load(type(report), "one") is None


def test_an_entry_under_another_name_is_not_believed(own_cache: Path) -> None:
    report = next(iter(REPORTS.values()))()
    Cache(own_cache).save("one", report)
    (entry,) = entries(own_cache)
    entry.rename(own_cache / entry.name.replace("one", "two"))
    assert Cache(own_cache).load(type(report), "two") is None


@pytest.mark.skipif(os.name == "nt", reason="Windows has no time of the last change of the entry")
def test_a_file_rewritten_in_place_with_its_old_date_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    before, status = caching.state_of([file]), file.stat()
    with file.open("r+b") as opened:
        opened.write(b"two")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert caching.state_of([file]) != before


def test_an_entry_of_another_shape_is_no_fact() -> None:
    with pytest.raises(TypeError):
        restore(TokenizerFacts, ["right", 1, None])
    with pytest.raises(TypeError):
        restore(TokenizerFacts, ["right", None])


def test_the_oldest_entries_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "MOST_ENTRIES", 5)
    cache = Cache(tmp_path)
    for number in range(9):
        cache.save(str(number) * 40, TokenizerFacts("right", None, None))
        os.utime(tmp_path / f"{str(number) * 40}-tokenizerfacts.json", ns=(number * 10**9, number * 10**9))
        if number == 6:
            assert cache.load(TokenizerFacts, "2" * 40) is not None  # used, and so young again
    kept = {file.name[0] for file in entries(tmp_path)}
    assert len(kept) <= 5
    assert {"2", "8"} <= kept
    assert not list(tmp_path.glob(".new-*"))


def test_it_takes_no_more_room_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "MOST_CACHED_BYTES", 1000)
    cache = Cache(tmp_path)
    for number in range(20):
        cache.save(f"{number:040x}", TokenizerFacts("right", "x" * 200, None))
    assert sum(file.stat().st_size for file in entries(tmp_path)) <= 1000


def test_many_at_once(own_cache: Path, classifier: Path) -> None:
    command = [*warm.python(), "-m", "headscope", "check", str(classifier), "--json"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [process.communicate(timeout=120) for process in running]
    assert {process.returncode for process in running} == {0}
    assert len({out for out, _ in outputs}) == 1
    assert not list(own_cache.glob(".new-*"))


@pytest.mark.parametrize("place_is", ["a file", "missing parent that is a file"])
def test_a_place_that_cannot_be_used_is_no_failure(
    place_is: str, own_cache: Path, classifier: Path, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache.write_text("in the way")
    monkeypatch.setenv("HEADSCOPE_CACHE", str(own_cache if place_is == "a file" else own_cache / "below"))
    show("check", classifier)


def test_it_can_be_forbidden(own_cache: Path, classifier: Path, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_NO_CACHE", "1")
    show("inspect", classifier)
    assert not own_cache.exists()


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_survives_storage(name: str) -> None:
    report = REPORTS[name]()
    assert restore(Report, json.loads(json.dumps(store(report)))) == report


@settings(max_examples=50)
@given(st.text(), st.one_of(st.none(), st.text()))
def test_any_text_survives_storage(side: str, token: str | None) -> None:
    fact = TokenizerFacts(side, token, None)
    assert restore(TokenizerFacts, json.loads(json.dumps(store(fact)))) == fact
    assert restore(TokenizerFacts, store(replace(fact, eos_token=side))).eos_token == side
