"""Shipped facts: equal to a real examination field by field, and never used for another checkpoint or other sources.

`python -m tests.api.lookup.test_shipped` compares each structure, with drawn sizes, counts, names of labels; numbers
behind it are how many counts of each (9), and a seed (0).
"""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch

import headscope
from headscope.core.facts.plain import to_dict
from headscope.core.model.classes.reduced_config import DEPTHS
from headscope.core.source.memory.shipped_structures import ABSENT, MOST_CLASSES, hold
from headscope.core.source.memory.templates import filled
from headscope.core.source.storage import shipped
from headscope.core.source.storage.shipped import CLASSES, PLACE, SOURCES
from headscope.errors import Malformed
from scripts.shipped.shipped_structures import classes_of_family
from tests import warm
from tests.families import FAMILIES
from tests.headers_only import NAMES, Checkpoint, write

EVERY = 44
"""Which structures and classes the suite compares: every so many."""
STRUCTURES, CLASSES_COMPARED = 7, 10
"""How many these are."""
_TRIES = 500
TRACED = "was traced"
IS_MADE_HERE = shipped.shipped(SOURCES)["transformers"] == shipped.package_version("transformers")
"""Whether the facts are of the installed Transformers: on others, those whose functions have changed are traced."""


def structures() -> Iterator[dict[str, Any]]:
    with ZipFile(PLACE) as whole:
        for name in sorted(whole.namelist()):
            if name.startswith("structures/"):
                yield from json.loads(whole.read(name))


def drawn_symbols(entry: dict[str, Any], count: int, draw: random.Random) -> dict[str, Any]:
    """Sizes of an entry that nobody has published: each is another multiple, and all fit each other."""
    for _ in range(_TRIES):
        found = {name: other_size(name, own, draw) for name, own in entry["sizes"].items()} | {"classes": count}
        if hold(entry["relations"], found):
            return found | {"dtype": draw.choice(entry["dtypes"])}
    return {**entry["sizes"], "classes": count, "dtype": "float32"}


def other_size(name: str, own: Any, draw: random.Random) -> Any:
    if isinstance(own, float):
        return own * draw.choice([0.5, 1.0, 2.0]) if own < 0.4 else own
    if name.endswith("_token_id"):
        return draw.choice([own, draw.randint(0, 200)])
    if name in DEPTHS:
        return draw.randint(1, 7)
    return draw.choice([own, own, 2 * own, max(own // 2, 1)] if own < 20_000 else [own, own + 3, own - 77])


def checkpoint_of(entry: dict[str, Any], count: int, draw: random.Random, *, is_stated: bool = True) -> Checkpoint:
    """A checkpoint of an entry with drawn sizes, its fields with a default in part left out, its labels with names.

    It is in one of the forms in which Transformers, old and new, has saved the class.
    """
    symbols = drawn_symbols(entry, count, draw)
    rules = {name: filled(rule[1], symbols) for name, rule in entry["config"].items() if rule[0] == "="}
    config = {name: value for name, value in rules.items() if value != ABSENT}
    config |= {name: value for name, value in symbols.items() if name in entry["config"]}
    defaults = filled(entry["defaults"], symbols)
    texts = {name: json.dumps(value) for name, value in defaults.items()}  # 0 and 0.0 are shown otherwise
    free = [name for name, value in config.items() if texts.get(name) == json.dumps(value)]
    config = {
        name: value for name, value in config.items() if name not in draw.sample(free, draw.randint(0, len(free)))
    }
    if is_stated and count:
        names = [f"{draw.choice('äbc')}{number}" for number in range(count)] if draw.random() < 0.5 else None
        names = names or [f"LABEL_{number}" for number in range(count)]
        config["id2label"] = {str(number): name for number, name in enumerate(names)}
        config["label2id"] = {name: number for number, name in enumerate(names)}
    rows = filled(draw.choice(entry["forms"])["tensors"], symbols | {"classes": count or entry["default_classes"]})
    tensors = {key: (NAMES[dtype], tuple(shape)) for key, dtype, shape in rows}
    return Checkpoint("", {**config, "transformers_version": "4.9"}, tensors)


def counts_of(entry: dict[str, Any], draw: random.Random) -> Iterator[tuple[int, dict[str, Any]]]:
    """The class counts to be tried, with the options that ask for them."""
    many = draw.choice([draw.randint(3, 60), draw.randint(61, MOST_CLASSES), entry["sizes"].get("hidden_size", 16)])
    kinds = {"1": 1, "2": 2, "many": many}
    answers = [item["for"] for item in entry["forms"][0]["answers"][0]]
    for form, kind in dict.fromkeys((form, kind) for form, kind, problem in answers if problem is None):
        if form == "asked" and kind == "many" and draw.random() < 0.5:
            yield many, {"labels": [f"name {number}" for number in range(many)]}
        else:
            yield kinds.get(kind, 0), {"num_labels": kinds[kind]} if form == "asked" else {}


def differences(entry: dict[str, Any], folder: Path, draw: random.Random, most: int = 9) -> Iterator[str]:
    """Where the shipped facts of a structure differ from a real examination, for a few of the counts they hold for."""
    counts = list(counts_of(entry, draw))
    for count, options in draw.sample(counts, min(most, len(counts))):
        put(entry, count, folder, draw, is_stated=not options)
        if draw.random() < 0.5:
            (folder / "tokenizer.json").write_text(json.dumps(tokenizer_of(entry)), encoding="utf-8")
        what = f"{entry['config']['architectures'][1]} {count} {options}"
        for command in (headscope.inspect, headscope.diff_weights):
            known, real = command(folder, cache=True, **options).to_dict(), command(folder, **options).to_dict()
            found = [known.pop("is_shipped"), real.pop("is_shipped")]
            if found != [True, False]:  # a head so large that what its class puts there isn't measured
                yield f"{what}: {TRACED}"
            yield from (f"{what}: {name}" for name in real if known[name] != real[name])


def put(entry: dict[str, Any], count: int, folder: Path, draw: random.Random, *, is_stated: bool) -> None:
    """Writes a checkpoint of an entry in place of the one that is there."""
    for path in folder.glob("*"):
        path.unlink()
    write(checkpoint_of(entry, count, draw, is_stated=is_stated), folder)


def tokenizer_of(entry: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json that puts before a text what the entry was made for."""
    token = next(item["for"][0] for item in entry["forms"][0]["answers"][1] if item["for"] is not None)
    special = {"SpecialToken": {"id": token, "type_id": 0}}
    single = [*([special] if token else []), {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "added_tokens": [{"id": 0, "content": token, "special": True}] if token else [],
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": {}},
    }


@pytest.mark.parametrize("number", range(STRUCTURES))
def test_a_shipped_structure_is_what_an_examination_gives(number: int, place: Path) -> None:
    place.mkdir()
    compared = list(structures())[::EVERY]
    told = list(differences(compared[number], place, random.Random(number)))
    traced_structures.extend(line for line in told if TRACED in line)
    assert [line for line in told if TRACED not in line] == []
    assert len(compared) == STRUCTURES


traced_structures: list[str] = []


@pytest.mark.whole
def test_hardly_any_shipped_structure_is_traced() -> None:
    assert len(traced_structures) < 10 or not IS_MADE_HERE


def test_weights_that_pytorch_saved_are_known_like_those_of_safetensors(place: Path) -> None:
    model = FAMILIES["bert"].build("BertForSequenceClassification")
    model.config.architectures = ["BertForSequenceClassification"]
    model.config.save_pretrained(place)
    torch.save(model.state_dict(), place / "pytorch_model.bin")
    known, real = headscope.inspect(place, cache=True).to_dict(), headscope.inspect(place).to_dict()
    assert [known.pop("is_shipped"), real.pop("is_shipped")] == [IS_MADE_HERE, False]
    assert known == real
    torch.save(model.state_dict() | {"x": model.state_dict()["classifier.weight"]}, place / "pytorch_model.bin")
    assert not headscope.inspect(place, cache=True).is_shipped  # two keys of one storage


def classes() -> list[str]:
    with ZipFile(PLACE) as whole:
        return sorted(json.loads(whole.read(CLASSES)))


def differences_of_class(name: str) -> Iterator[str]:
    known, real = (headscope.inspect(name, cache=cache).to_dict() for cache in (True, False))
    if [known.pop("is_shipped"), real.pop("is_shipped")] != [True, False]:
        yield f"{name}: {TRACED}"
    yield from (f"{name}: {field}" for field in real if known[field] != real[field])


@pytest.mark.parametrize("number", range(CLASSES_COMPARED))
def test_a_shipped_class_is_what_an_examination_gives(number: int, place: Path) -> None:
    compared = classes()[::EVERY]
    told = list(differences_of_class(compared[number]))
    assert [line for line in told if TRACED not in line or IS_MADE_HERE] == []
    assert len(compared) == CLASSES_COMPARED


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "OpenAIPrivacyFilterForTokenClassification"])
def test_the_facts_of_a_class_are_made_as_they_were(name: str) -> None:
    made = json.loads(json.dumps(classes_of_family([name])[name]))
    with ZipFile(PLACE) as whole:
        family = json.loads(whole.read(CLASSES))[name]
        kept = json.loads(whole.read(shipped.classes_of(family)))[name]
    assert {*made} == {*kept}
    # What ran depends on what was imported before.
    assert [field for field in made if made[field] != kept[field] and field != "code"] == []


def first_entry(model_type: str = "bert") -> dict[str, Any]:
    found = (entry for entry in structures() if entry["config"]["model_type"][1] == model_type)
    return next(entry for entry in found if [False, False] not in entry["labels"])


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
        ({"chunk_size_feed_forward": 2}, False),
        ({"is_decoder": True}, False),
        ({"layer_norm_eps": 1e-5}, True),
        ({"gradient_checkpointing": False, "pooler_type": "x", "_num_labels": 4}, True),
        ({"hidden_act": "relu"}, True),  # tried when the facts were made, and changes nothing
        ({"hidden_act": "tanh"}, False),
        ({"num_labels": 4}, False),
        ({"label2id": None}, True),  # as Transformers 5.24 writes it where only id2label was given
        ({"label2id": {"other": 0, "names": 1}}, True),  # heads don't read it
        ({"label2id": {"a": "0"}}, True),
        ({"label2id": {"a": "0", "b": 1, "c": None}}, False),
        ({"id2label": None}, False),  # beside a label2id
        ({"auto_map": {"AutoModel": "x.Y"}}, True),  # code that isn't trusted isn't run
        ({"pad_token_id": 7, "eos_token_id": [1, 2], "problem_type": "regression"}, True),
    ],
)
def test_only_a_field_that_nothing_reads_may_be_added(place: Path, fields: dict[str, Any], expected: bool) -> None:
    assert is_shipped(place, **fields) is expected
    if expected:
        known, real = (headscope.inspect(place, cache=cache).to_dict() for cache in (True, False))
        assert known | {"is_shipped": False} == real


def test_a_field_that_python_gives_a_meaning_is_not_shipped(place: Path) -> None:
    with pytest.raises(Malformed, match="__weakref__"):  # no source mentions it, and no configuration takes it
        is_shipped(place, __weakref__=1)


def test_functions_that_have_changed_are_traced(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shipped.code_digest
    monkeypatch.setattr(shipped, "is_same_file", lambda path: False)
    monkeypatch.setattr(shipped, "code_digest", lambda path, names: "other" if "bert" in path else real(path, names))
    assert not is_shipped(place)


@pytest.mark.parametrize("is_vouched", ["all together", "each alone", "with others", "otherwise", "elsewhere"])
def test_functions_whose_change_changed_no_fact_are_known(
    is_vouched: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = first_entry()["code"]
    code = whole[:2]
    names = [f"{path} {digest}" for path, _, digest in code]
    both = dict.fromkeys(names, "other")
    known = {
        "all together": [both],
        "each alone": [{name: "other"} for name in names],
        "with others": [both | {"models/x.py 0": "other"}],
        "otherwise": [dict.fromkeys(names, "another")],
        "elsewhere": [],
    }[is_vouched]
    here = shipped.package_version("transformers")
    vouched = {
        "5.1": [shipped.changes_digest(whole, both)],
        here: [shipped.changes_digest(whole, changed) for changed in known],
    }
    real, paths = shipped.shipped, {row[0] for row in code}
    read = shipped.code_digest
    monkeypatch.setattr(shipped, "is_same_file", lambda path: path not in paths)
    monkeypatch.setattr(shipped, "code_digest", lambda path, names: "other" if path in paths else read(path, names))
    monkeypatch.setattr(shipped, "shipped", lambda name: vouched if name == shipped.VOUCHED else real(name))
    assert is_shipped(place) is (is_vouched == "all together")


def test_a_proof_is_made_where_it_is_told(place: Path) -> None:
    assert is_shipped(place)
    proven = headscope.inspect(place, cache=True, prove=True)
    assert not proven.is_shipped and proven.head.verification.agrees


def test_other_versions_with_the_same_functions_are_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shipped.package_version
    monkeypatch.setattr(shipped, "package_version", lambda name: "5.99" if name == "transformers" else real(name))
    monkeypatch.setattr(shipped, "is_same_file", lambda path: False)
    assert is_shipped(place)


def test_without_the_cache_everything_is_traced(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_NO_CACHE", "1")
    assert not is_shipped(place)
    assert not headscope.inspect(place).is_shipped


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped"])
@pytest.mark.usefixtures("no_shipped_facts")
def test_damaged_facts_are_not_used(damage: str, place: Path) -> None:
    whole = bytearray(PLACE.read_bytes())
    whole[1577] ^= 4  # in the first part, which is always read
    other = {"missing": None, "empty": b"", "cut": PLACE.read_bytes()[:-1], "flipped": bytes(whole)}[damage]
    if other is not None:
        shipped.PLACE.write_bytes(other)
    assert not is_shipped(place)


PROCESS = """
import sys
from headscope.shell import main
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
        pytest.param(("heads",), marks=pytest.mark.skipif(not IS_MADE_HERE, reason="the facts are of another version")),
    ],
)
def test_the_first_look_at_a_known_structure_imports_no_torch(place: Path, command: tuple[str, ...]) -> None:
    assert is_shipped(place)
    arguments = [str(place) if item == "MODEL" else item for item in command]
    ran = subprocess.run(
        [*warm.python(warm.LIGHT), "-c", PROCESS, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr


_IDLE_MODULES = """
import sys
from pathlib import Path
ran = set()
def note_call(frame, event, argument):
    # The body of a module and that of a class are frames too, but run at every import.
    if event == "call" and frame.f_code.co_flags & 2:
        ran.add(frame.f_code.co_filename)
sys.setprofile(note_call)
from headscope.shell import main
try:
    main(sys.argv[1:])
finally:
    sys.setprofile(None)
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None) or "__init__.py"
        if name.startswith("headscope.") and Path(file).name != "__init__.py" and file not in ran:
            print(name, file=sys.stderr)
"""
_MOST_IDLE = 25


def test_an_inspect_of_a_known_structure_imports_few_modules_that_run_nothing(place: Path) -> None:
    assert is_shipped(place)
    command = [*warm.python(warm.LIGHT, anew=True), "-c", _IDLE_MODULES, "inspect", str(place)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    idle = [line for line in ran.stderr.splitlines() if line.startswith("headscope.")]
    assert 0 < len(idle) <= _MOST_IDLE, "\n".join(idle)


def test_a_class_is_shown_as_it_is_traced(place: Path) -> None:
    known = headscope.heads("squeezebert", cache=True)
    real = headscope.heads("squeezebert", workers=1)
    assert list(map(to_dict, known)) == list(map(to_dict, real))


@pytest.mark.usefixtures("place")
def test_a_whole_name_comes_first() -> None:
    entries = headscope.heads("BertForSequenceClassification", cache=True)
    assert entries[0].class_name == "BertForSequenceClassification"
    assert len(entries) > 1


def test_the_shipped_facts_are_small() -> None:
    assert PLACE.stat().st_size < 2_000_000


def main(most: int, seed: int) -> None:
    """Prints each difference when it is found; `seed` draws other checkpoints."""
    draw, compared, wrong = random.Random(seed), 0, 0
    found = list(structures())
    draw.shuffle(found)
    with tempfile.TemporaryDirectory() as folder:
        for entry in found:
            compared += min(most, len(list(counts_of(entry, draw))))
            for line in differences(entry, Path(folder), draw, most):
                wrong += TRACED not in line
                print(f"after {compared} checkpoints: {line}", flush=True)
    for name in classes():
        for line in differences_of_class(name):
            wrong += 1
            print(line, flush=True)
    print(f"{compared} checkpoints of {len(found)} structures, {len(classes())} classes, {wrong} differences")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(*map(int, (sys.argv[1:] + ["9", "0"][len(sys.argv) - 1 :])))
