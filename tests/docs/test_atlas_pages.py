"""The kept data of the atlas: it can be read back, the page follows from it, and so do the pages of the classes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headscope.core.facts.heads.atlas import HeadEntry
from headscope.core.facts.plain import restore, to_dict
from headscope.facts import PaddingEffect, Task
from headscope.slices.diagram.svg import svg_text
from scripts.pages import write_atlas
from scripts.pages.atlas_page import atlas_page
from scripts.site import site_atlas
from scripts.site.entry_picture import entry_picture

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def atlas() -> Any:
    return write_atlas.read_atlas()


def entry_of(atlas: Any, name: str) -> HeadEntry:
    return next(entry for entry in atlas.entries if entry.class_name == name)


def test_the_page_follows_from_the_kept_data(atlas: Any) -> None:
    page = (ROOT / "docs" / "atlas.md").read_text(encoding="utf-8")
    assert page == atlas_page(atlas.entries, atlas.transformers)
    assert page.index("## sequence-classification") < page.index("| task | classes |")


def test_the_data_is_read_back_as_it_was_written(atlas: Any) -> None:
    kept = (ROOT / "docs" / "atlas.json").read_text(encoding="utf-8")
    assert write_atlas.atlas_text(atlas) == kept


@pytest.mark.parametrize("change", [{"class": 1}, {"task": "poetry"}, {"surprise": 1}])
def test_what_does_not_fit_is_not_read(atlas: Any, change: dict[str, Any]) -> None:
    document = to_dict(entry_of(atlas, "BertForSequenceClassification")) | change
    with pytest.raises((TypeError, ValueError)):
        restore(HeadEntry, document)
    with pytest.raises(TypeError):
        restore(HeadEntry, {name: document[name] for name in list(document)[1:]})


def test_the_effect_of_padding_is_measured_for_texts_with_one_set_of_scores(atlas: Any) -> None:
    bert = entry_of(atlas, "BertForSequenceClassification")
    measured = write_atlas._with_padding(bert)
    assert measured == bert
    assert [(item.side, item.changes) for item in bert.head.verification.padding] == [("right", False), ("left", True)]
    for name in ("BertForTokenClassification", "ViTForImageClassification"):
        entry = entry_of(atlas, name)
        assert write_atlas._with_padding(entry) is entry


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        (PaddingEffect("left", True, 0.5), "On the left: changes the scores."),
        (PaddingEffect("left", False, 0.0), "On the left: leaves the scores alone."),
        (PaddingEffect("left", None, reason="a [b] c"), "On the left: not determined, a \\[b\\] c."),
    ],
)
def test_padding_in_words(atlas: Any, effect: PaddingEffect, words: str) -> None:
    head = entry_of(atlas, "BertForSequenceClassification").head
    assert head.verification is not None
    shown = replace(head, verification=replace(head.verification, padding=(effect,)))
    assert " ".join(site_atlas._padding(shown)).startswith(words)
    unmeasured = replace(head, verification=replace(head.verification, padding=()))
    assert list(site_atlas._padding(unmeasured)) == ["Not measured."]


def test_changes_are_told_by_class() -> None:
    head = {
        "kind": "mean",
        "rule": "r",
        "positions": [],
        "formula": "f",
        "parameters": {"w": [2]},
        "not used": [],
        "loss": "l",
    }
    versions = {
        "1.0.0": {"Same": head, "Other": head, "Gone": head, "Late": {"reason": "no [library]; tried: x"}},
        "2.0.0": {"Same": head, "Other": head | {"loss": "m"}, "Late": head, "New": head},
    }
    assert site_atlas._changes(versions) == {
        "Same": ["The head is the same in Transformers 1.0.0 to 2.0.0, as far as they were compared."],
        "Other": ["2.0.0: loss: l, now m"],
        "Gone": ["2.0.0: removed, last seen in 1.0.0"],
        "Late": ["2.0.0: traced; in 1.0.0 it was not: no \\[library\\]"],
        "New": ["2.0.0: new class, not in 1.0.0"],
    }


def test_a_picture_shows_what_pretraining_gives(atlas: Any) -> None:
    entry = entry_of(atlas, "BertForSequenceClassification")
    picture = entry_picture(entry, "5.23.0", "right")
    assert picture.verdict.startswith("2 of 4 ") and picture.verdict.endswith(" BertForPreTraining")
    words = [weight.word for node in picture.nodes for weight in node.weights]
    assert words == ["loaded", "loaded", "new", "new"]
    alone = entry_picture(replace(entry, pretraining_class=None), "5.23.0", "right")
    assert {weight.word for node in alone.nodes for weight in node.weights} == {"not compared"}
    single = entry_picture(entry_of(atlas, "GPT2ForSequenceClassification"), "5.23.0", "right")
    assert single.verdict.startswith("1 ") and single.verdict.endswith(" GPT2LMHeadModel")
    with pytest.raises(ValueError, match="not traced"):
        entry_picture(replace(entry, head=None), "5.23.0", "")


def test_padding_is_drawn_where_the_tokenizer_puts_it(atlas: Any) -> None:
    entry = entry_of(atlas, "XLNetForSequenceClassification")
    assert atlas.padding_sides["xlnet"] == "left"
    assert "padding on the left" in svg_text(entry_picture(entry, "5.23.0", "left"))
    assert "padding on the right" in svg_text(entry_picture(entry, "5.23.0", ""))
    image = entry_of(atlas, "ViTForImageClassification")
    assert image.task is Task.IMAGE_CLASSIFICATION
    assert "padding on the" not in svg_text(entry_picture(image, "5.23.0", "left"))


@pytest.mark.parametrize(
    ("names", "oldest", "shown"),
    [
        (("BertForMultipleChoice", "ErnieForSequenceClassification", "BertForSequenceClassification"), "Ernie", "Bert"),
        (("MraForMultipleChoice", "MraForSequenceClassification", "YosoForSequenceClassification"), "Yoso", "Yoso"),
    ],
)
def test_the_gallery_shows_a_class_of_the_usual_task_that_people_use_or_that_is_old(
    atlas: Any, names: tuple[str, ...], oldest: str, shown: str
) -> None:
    group = [entry_of(atlas, name) for name in names]
    found = site_atlas._representative(group, {f"{oldest}ForSequenceClassification": {}})
    assert found.class_name == f"{shown}ForSequenceClassification"
