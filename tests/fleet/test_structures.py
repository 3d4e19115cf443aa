"""Sharing an examination among checkpoints of one structure changes nothing, in any field of any report."""

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from tables import small_bert

from headscope.checks.findings import with_findings
from headscope.core.source.checkpoint import examine
from headscope.core.source.memory.memory import Memory, Structures
from headscope.core.source.storage.cache import Cache
from headscope.errors import HeadscopeError
from headscope.shell.values import make_request
from tests.headers_only import Checkpoint, checkpoint_of, variants, write

# An encoder with a pooler, a decoder that reads a pad token, a head for each token, images.
CLASSES = (
    ("bert", "BertForSequenceClassification"),
    ("gpt2", "GPT2ForSequenceClassification"),
    ("distilbert", "DistilBertForTokenClassification"),
    ("vit", "ViTForImageClassification"),
)


def examined(folder: Path, memory: Memory | None) -> Any:
    """The report and what the rules read beside it, or the error, of a folder."""
    request = make_request(str(folder), {})
    try:
        found = examine("inspect", request, None, memory)
    except HeadscopeError as err:
        return type(err).__name__, err.message, err.hint
    return with_findings(found), found.built


def differences(alone: Any, shared: Any) -> Iterator[str]:
    """The fields in which two results differ."""
    if alone == shared:
        return
    if not hasattr(alone[0], "weights") or not hasattr(shared[0], "weights"):
        yield f"{alone} != {shared}"
        return
    for one, other in zip(alone, shared, strict=True):
        for field in fields(one):
            if getattr(one, field.name) != getattr(other, field.name):
                yield f"{field.name}: {getattr(one, field.name)} != {getattr(other, field.name)}"


def compare(found: list[Checkpoint], place: Path, memory: Memory) -> Iterator[tuple[str, bool, list[str]]]:
    """Each checkpoint by name: whether its structure was known, and what differs if it is shared."""
    for number, checkpoint in enumerate(found):
        folder = write(checkpoint, place / f"{number}")
        before = len(memory.structures or ())
        shared = examined(folder, memory)
        known = len(memory.structures or ()) == before
        yield checkpoint.name, known, list(differences(examined(folder, None), shared))


@pytest.mark.parametrize(("model_type", "name"), CLASSES)
def test_every_variant_has_the_report_that_it_has_alone(model_type: str, name: str, tmp_path: Path) -> None:
    base = checkpoint_of(model_type, name)
    assert base is not None
    found = list(compare(list(variants(base, random.Random(7))), tmp_path, Memory(Cache(None), Structures())))
    assert [(what, lines) for what, _, lines in found if lines] == []
    # Names of labels, of the model and of the version make no structure of their own.
    assert sum(known for _, known, _ in found) >= 3


@pytest.mark.usefixtures("no_shipped_facts")
def test_through_the_cache_of_another_process_as_well(tmp_path: Path) -> None:
    base = small_bert()
    folders = [
        write(replace(base, config=base.config | labels), tmp_path / labels["id2label"]["0"])
        for labels in (
            {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}},
            {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}},
        )
    ]
    stored = tmp_path / "structures"
    examine("inspect", make_request(str(folders[0]), {}), None, Memory(Cache(stored)))
    request = make_request(str(folders[1]), {})
    shared = examine("inspect", request, None, Memory(Cache(stored)))
    assert shared.skeleton is None, "it was examined again"
    assert shared.report.model.labels == ("no", "yes")
    assert not shared.report.model.labels_are_placeholders
    assert list(differences(examined(folders[1], None), examined(folders[1], Memory(Cache(stored))))) == []


def test_a_state_that_names_the_checkpoint_is_not_given_to_another(tmp_path: Path) -> None:
    """Keys of DistributedDataParallel, which are found when the loader has looked at them."""
    base = small_bert()
    wrapped = replace(base, tensors={f"module.{key}": item for key, item in base.tensors.items()})
    memory = Memory(Cache(None), Structures())
    for name in ("one", "other"):
        folder = write(wrapped, tmp_path / name)
        shared = examined(folder, memory)
        assert list(differences(examined(folder, None), shared)) == []
        assert [state.rule for state in shared[0].checkpoint.states] == ["HS802"]


def test_what_is_asked_is_part_of_the_structure(tmp_path: Path) -> None:
    folder = write(small_bert(), tmp_path / "a")
    memory = Memory(Cache(None), Structures())
    counts = [
        examine("inspect", make_request(str(folder), options), None, memory).report.model.num_labels
        for options in ({}, {"num_labels": 5}, {"labels": "a,b,c"}, {"num_labels": 5})
    ]
    assert counts == [2, 5, 3, 5]


def test_a_proof_is_shown_only_where_it_was_asked_for(tmp_path: Path) -> None:
    folder = write(small_bert(), tmp_path / "a")
    memory = Memory(Cache(None), Structures())

    def verification(*, prove: bool) -> object:
        head = examine("inspect", make_request(str(folder), {"prove": prove}), None, memory).report.head
        return head.verification

    assert verification(prove=False) is None
    assert verification(prove=True) is not None
    assert verification(prove=False) is None


def test_the_structure_that_was_not_used_for_longest_goes_first() -> None:
    kept = Structures(most=2)
    for key in ("a", "b"):
        kept.keep(key, key)
    kept.get("a")
    kept.keep("c", "c")
    assert [kept.get(key) for key in ("a", "b", "c")] == ["a", None, "c"]
