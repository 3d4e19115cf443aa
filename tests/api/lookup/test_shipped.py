"""Shipped facts: equal to a real examination field by field, and never used for another checkpoint or other sources.

`python -m tests.api.lookup.test_shipped` compares every structure, with drawn counts and names of labels; a number
behind it is how many counts of each.
"""

import json
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

import headscope
from headscope.errors import Malformed
from headscope.examination.base import shipped
from headscope.examination.base.shipped import CLASSES, PLACE
from headscope.examination.checkpoint.shipped_structures import MOST_CLASSES, filled
from headscope.facts.plain import to_dict
from headscope.upstream import sources
from tests import warm
from tests.headers_only import NAMES, Checkpoint, write

SAVED = ["safetensors", ["model.safetensors"], []]
EVERY = 41
"""Which structures the suite compares: every so many."""


def structures() -> Iterator[dict[str, Any]]:
    with ZipFile(PLACE) as whole:
        for name in sorted(whole.namelist()):
            if name.startswith("structures/"):
                yield from (item for item in json.loads(whole.read(name)) if item["stored"] == SAVED)


def checkpoint_of(entry: dict[str, Any], count: int, draw: random.Random) -> Checkpoint:
    """A checkpoint of an entry, its fields with a default in part left out, its labels under drawn names."""
    left_out = set(draw.sample(entry["by_default"], draw.randint(0, len(entry["by_default"]))))
    config = {name: value for name, value in entry["config"].items() if name not in left_out}
    if entry["labels"][0]:
        names = [f"{draw.choice('äbc')}{number}" for number in range(count)] if draw.random() < 0.5 else None
        names = names or [f"LABEL_{number}" for number in range(count)]
        config["id2label"] = {str(number): name for number, name in enumerate(names)}
        config["label2id"] = {name: number for number, name in enumerate(names)}
    tensors = {key: (NAMES[dtype], tuple(filled(shape, count))) for key, dtype, shape in entry["tensors"]}
    return Checkpoint("", {**config, "transformers_version": "4.9"}, tensors)


def counts_of(entry: dict[str, Any], draw: random.Random) -> Iterator[tuple[int, dict[str, Any]]]:
    """The class counts to be tried, with the options that ask for them."""
    width = entry["config"].get("hidden_size")
    many = draw.choice([draw.randint(3, 60), draw.randint(61, MOST_CLASSES), width if isinstance(width, int) else 16])
    kinds = {"1": 1, "2": 2, "many": many}
    for form, kind in dict.fromkeys((form, kind) for form, kind, own in (item["for"] for item in entry["answers"])):
        if form == "asked" and kind == "many" and draw.random() < 0.5:
            yield many, {"labels": [f"name {number}" for number in range(many)]}
        else:
            yield kinds.get(kind, 0), {"num_labels": kinds[kind]} if form == "asked" else {}


def differences(entry: dict[str, Any], folder: Path, draw: random.Random, most: int = 9) -> Iterator[str]:
    """Where the shipped facts of a structure differ from a real examination, for a few of the counts they hold for."""
    counts = list(counts_of(entry, draw))
    for count, options in draw.sample(counts, min(most, len(counts))):
        put(entry, count, folder, draw)
        if draw.random() < 0.5:
            (folder / "tokenizer.json").write_text(json.dumps(tokenizer_of(entry)), encoding="utf-8")
        what = f"{entry['config']['architectures']} {count} {options}"
        for command in (headscope.inspect, partial(headscope.inspect, prove=True), headscope.diff_weights):
            known, real = command(folder, cache=True, **options).to_dict(), command(folder, **options).to_dict()
            found = [known.pop("is_shipped"), real.pop("is_shipped")]
            if found != [True, False] and command is headscope.inspect:  # a proof is shipped for some counts only
                yield f"{what}: not found"
            yield from (f"{what}: {name}" for name in real if not is_alike(known[name], real[name]))


def put(entry: dict[str, Any], count: int, folder: Path, draw: random.Random) -> None:
    """Writes a checkpoint of an entry in place of the one that is there."""
    for path in folder.glob("*"):
        path.unlink()
    write(checkpoint_of(entry, count, draw), folder)


def proof_is_shipped(entry: dict[str, Any], folder: Path, draw: random.Random) -> bool:
    count, options = next(counts_of(entry, draw))
    put(entry, count, folder, draw)
    return headscope.inspect(folder, cache=True, prove=True, **options).is_shipped


def is_alike(known: Any, real: Any) -> bool:
    """Whether two documents are equal, but for how much padding changes: its digits depend on the processor."""
    if isinstance(known, dict) and isinstance(real, dict):
        known, real = dict(known), dict(real)
        if {"side", "changes", "difference"} <= known.keys() & real.keys():
            pair = [item.pop("difference") for item in (known, real)]
            if pair != [None, None] and not math.isclose(*pair, rel_tol=0.01, abs_tol=1e-4):
                return False
        return known.keys() == real.keys() and all(is_alike(value, real[name]) for name, value in known.items())
    if isinstance(known, list) and isinstance(real, list):
        return len(known) == len(real) and all(map(is_alike, known, real))
    return bool(known == real)


def tokenizer_of(entry: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json that puts before a text what the entry was made for."""
    token = next(own[0] for _, _, own in (item["for"] for item in entry["answers"]) if own is not None)
    special = {"SpecialToken": {"id": token, "type_id": 0}}
    single = [*([special] if token else []), {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "added_tokens": [{"id": 0, "content": token, "special": True}] if token else [],
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": {}},
    }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HEADSCOPE_NO_CACHE", raising=False)
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "model"


def test_a_shipped_structure_is_what_an_examination_gives(place: Path) -> None:
    place.mkdir()
    draw = random.Random(0)
    some = list(structures())[::EVERY]
    for entry in some:
        assert list(differences(entry, place, draw)) == []
    assert any(proof_is_shipped(entry, place, draw) for entry in some), "or no shipped proof was compared"


def classes() -> list[str]:
    with ZipFile(PLACE) as whole:
        return sorted(json.loads(whole.read(CLASSES)))


def differences_of_class(name: str) -> Iterator[str]:
    for prove in (False, True):
        known, real = (headscope.inspect(name, cache=cache, prove=prove).to_dict() for cache in (True, False))
        if [known.pop("is_shipped"), real.pop("is_shipped")] != [True, False]:
            yield f"{name}, {prove}: not found"
        yield from (f"{name}, {prove}: {field}" for field in real if not is_alike(known[field], real[field]))


def test_a_shipped_class_is_what_an_examination_gives(place: Path) -> None:
    assert [line for name in classes()[::EVERY] for line in differences_of_class(name)] == []


def first_entry(model_type: str = "bert") -> dict[str, Any]:
    found = (entry for entry in structures() if entry["config"]["model_type"] == model_type)
    return next(entry for entry in found if entry["labels"] == [True, True])


def is_shipped(place: Path, **fields: Any) -> bool:
    """Whether the facts of a known structure with other fields in its configuration are shipped ones."""
    place.mkdir(exist_ok=True)
    checkpoint = checkpoint_of(first_entry(), 4, random.Random(1))
    write(Checkpoint("", checkpoint.config | fields, checkpoint.tensors), place)
    return headscope.inspect(place, cache=True).is_shipped


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"a_field_that_nothing_reads_xq": 1}, True),
        ({"output_hidden_states": True}, False),
        ({"is_decoder": True}, False),
        ({"layer_norm_eps": 1e-5}, False),
        ({"hidden_act": "relu"}, False),
        ({"num_labels": 4}, False),
        ({"auto_map": {"AutoModel": "x.Y"}}, False),
    ],
)
def test_only_a_field_that_nothing_knows_may_be_added(place: Path, fields: dict[str, Any], expected: bool) -> None:
    assert is_shipped(place, **fields) is expected


def test_a_field_that_python_gives_a_meaning_is_not_shipped(place: Path) -> None:
    with pytest.raises(Malformed, match="__weakref__"):  # no source mentions it, and no configuration takes it
        is_shipped(place, __weakref__=1)


@pytest.mark.parametrize("name", ["folder_digest", "package_version"])
def test_other_sources_and_other_versions_are_traced(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "folder_digest":
        monkeypatch.setattr(sources, name, lambda folder: "other")
    else:
        real = shipped.package_version
        monkeypatch.setattr(shipped, name, lambda package: "0.1" if package == "torch" else real(package))
    assert not is_shipped(place)


def test_without_the_cache_everything_is_traced(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_NO_CACHE", "1")
    assert not is_shipped(place)
    assert not headscope.inspect(place).is_shipped


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped"])
def test_damaged_facts_are_not_used(damage: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bytearray(PLACE.read_bytes())
    whole[1577] ^= 4  # in the first part, which is always read
    other = {"missing": None, "empty": b"", "cut": PLACE.read_bytes()[:-1], "flipped": bytes(whole)}[damage]
    if other is not None:
        (tmp_path / "facts.zip").write_bytes(other)
    entry = first_entry()
    monkeypatch.setattr(shipped, "PLACE", tmp_path / "facts.zip")
    shipped._read_member.cache_clear()
    try:
        place.mkdir()
        write(checkpoint_of(entry, 4, random.Random(1)), place)
        assert not headscope.inspect(place, cache=True).is_shipped
    finally:
        shipped._read_member.cache_clear()


PROCESS = """
import sys
from headscope.cli import main
code = main(sys.argv[1:])
sys.exit(9 if {"torch", "transformers"} & set(sys.modules) else code)
"""


@pytest.mark.parametrize(
    "command",
    [
        ("inspect", "MODEL"),
        ("inspect", "MODEL", "--json"),
        ("diff-weights", "MODEL"),
        ("diagram", "MODEL"),
        ("compare", "MODEL", "MODEL"),
        ("inspect", "BertForSequenceClassification"),
        ("heads", "BertForSequenceClassification"),
        ("heads", "squeezebert", "--operation", "tanh"),
    ],
)
def test_the_first_look_at_a_known_structure_imports_no_torch(place: Path, command: tuple[str, ...]) -> None:
    assert is_shipped(place)
    arguments = [str(place) if item == "MODEL" else item for item in command]
    ran = subprocess.run(
        [*warm.python(warm.LIGHT), "-c", PROCESS, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr


def test_a_class_is_shown_as_it_is_traced(place: Path) -> None:
    known = headscope.heads("squeezebert", cache=True)
    real = headscope.heads("squeezebert", workers=1)
    assert list(map(to_dict, known)) == list(map(to_dict, real))


def test_a_whole_name_comes_first() -> None:
    entries = headscope.heads("BertForSequenceClassification", cache=True)
    assert entries[0].class_name == "BertForSequenceClassification"
    assert len(entries) > 1


def test_the_shipped_facts_are_small() -> None:
    assert PLACE.stat().st_size < 2_000_000


def main(most: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found, draw = list(structures()), random.Random(0)
        wrong = [line for entry in found for line in differences(entry, Path(folder), draw, most)]
    wrong += [line for name in classes() for line in differences_of_class(name)]
    print("\n".join(wrong))
    print(f"{len(found)} structures, {len(classes())} classes, {len(wrong)} differences")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
