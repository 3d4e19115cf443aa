"""Changes of config.json that follow from an edit, and the paragraph on it in a model card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from headscope.copies.facts import EditedField, EditReport
from headscope.core.facts.counting import counted

CLASS_FIELDS = ("id2label", "label2id", "num_labels", "_num_labels")
"""Fields that hold nothing but the names of the classes and their number."""
_SHOWN = 200


def edited_config(config: Mapping[str, Any], names: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Copies `config` and sets the names of the classes after the edit, if there are any, and other fields.

    All else stays as it is.
    """
    found = deepcopy(dict(config))
    if names:
        found["id2label"] = {str(number): name for number, name in enumerate(names)}
        found["label2id"] = {name: number for number, name in enumerate(names)}
        found |= {field: len(names) for field in ("num_labels", "_num_labels") if field in found}
    return found | dict(settings)


def changed_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[EditedField, ...]:
    """Lists the fields in which two configurations differ, with shortened values."""
    names = sorted({*before, *after})
    return tuple(
        EditedField(name, _shorten_value(before, name), _shorten_value(after, name))
        for name in names
        if before.get(name, _NOTHING) != after.get(name, _NOTHING)
    )


_NOTHING = object()  # a field may hold None, which differs from a field that isn't there


def _shorten_value(config: Mapping[str, Any], name: str) -> str:
    if name not in config:
        return ""
    text = json.dumps(config[name], ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def sentences_on_edit(report: EditReport) -> list[str]:
    """Describes the edit in sentences, for the model card."""
    before, after = (counted(len(labels), "class", "classes") for labels in (report.labels_before, report.labels))
    rows = [f"{before} before, {after} after."] if report.labels else []
    fields = [f"`{item.name}` is set to {item.after}." for item in report.settings if item.name not in CLASS_FIELDS]
    return [*rows, *report.exact, *report.approximate, *fields]


def card_with_edit(card: bytes, sentences: Sequence[str]) -> bytes:
    """Adds a paragraph on the edit at the end of a model card; the rest of the card keeps its bytes.

    The paragraph has the encoding and the line ends of the card; a character that the encoding lacks becomes an entity
    of HTML, which Markdown shows.
    """
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if card.startswith(mark)), "utf-8")
    try:
        text = card.decode(encoding)
    except UnicodeDecodeError:
        text, encoding = card.decode("latin-1"), "latin-1"  # decodes any bytes
    end = "\r\n" if "\r\n" in text else "\n"
    gap = "" if text.endswith("\n") or not text else end
    lines = [gap, "## Edited with headscope", "", *(f"- {sentence}" for sentence in sentences), ""]
    return card + end.join(lines).encode(encoding, "xmlcharrefreplace")


_BYTE_ORDER_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
