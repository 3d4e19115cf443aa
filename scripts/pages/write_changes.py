"""Writes docs/changes.md, what changed in the heads of Transformers from version to version, or `--check` to compare.

It reads what `scripts/releases/matrix.py --heads` kept of each version in docs/versions/.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from scripts.generated import write_or_compare

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "changes.md"
OPENING = """# What changed in the heads of Transformers

A fine-tuned checkpoint keeps its weights when you upgrade Transformers; what the class does with them can change. This
page compares what `headscope heads` traces on several versions of Transformers: which positions each head reads, its
formula, its parameters and its loss, in the default configuration of each class. A class that headscope can't trace on
a CPU, with random weights and no optional packages, isn't compared. Scripts can read the data of each version: {files}.

To see what your version does with your checkpoint, run `headscope inspect CHECKPOINT`.
"""
Heads = dict[str, dict[str, Any]]


def main(arguments: list[str]) -> int:
    """Writes the page; with `--check` shows the difference instead and returns 1 where there is one."""
    fresh = changes_page({path.stem: json.loads(path.read_text(encoding="utf-8")) for path in kept_versions()})
    return write_or_compare(PAGE, fresh, arguments)


def kept_versions(docs: Path = DOCS) -> list[Path]:
    """The files that `docs` keeps of each version, the oldest first."""
    return sorted((docs / "versions").glob("*.json"), key=lambda path: [int(part) for part in path.stem.split(".")])


def changes_page(versions: dict[str, Heads]) -> str:
    """The whole page; `versions` go from the oldest to the newest."""
    names = list(versions)
    pairs = [section for old, new in [*pairwise(names)][::-1] for section in _section(old, new, versions)]
    files = ", ".join(f"[{name}](versions/{name}.json)" for name in names)
    return "\n".join([OPENING.format(files=files), *pairs]).rstrip() + "\n"


def _section(old: str, new: str, versions: dict[str, Heads]) -> Iterator[str]:
    before, after = versions[old], versions[new]
    both = sorted(before.keys() & after.keys())
    traced = [name for name in both if "reason" not in before[name] and "reason" not in after[name]]
    yield f"## {old} to {new}\n"
    yield f"{len(both)} classes in both, {len(traced)} of them traced in both.\n"
    yield from _changed(traced, before, after)
    yield from _told_by_one(traced, before, after, old, new)
    turned = [(name, f"in {old}, {_failure(before[name])}") for name in _turned(both, before, after)]
    yield from _listed(f"Traced in {new}, not in {old}", turned)
    lost = [(name, f"in {new}, {_failure(after[name])}") for name in _turned(both, after, before)]
    yield from _listed(f"Traced in {old}, not in {new}", lost)
    fresh = [(name, after[name]) for name in sorted(after.keys() - before.keys())]
    yield from _listed("New classes", ((name, _told(head)) for name, head in fresh))
    yield from _listed("Removed classes", ((name, "") for name in sorted(before.keys() - after.keys())))


def _turned(names: list[str], without: Heads, having: Heads) -> list[str]:
    return [name for name in names if "reason" in without[name] and "reason" not in having[name]]


def _changed(names: list[str], before: Heads, after: Heads) -> Iterator[str]:
    rows = [(f"`{name}`", *change) for name in names for change in differences(before[name], after[name])]
    if not rows:
        yield "No head changed.\n"
        return
    yield "| class | what | before | after |\n|---|---|---|---|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What differs, with both sides. A token that is only called another name isn't another position."""
    if _is_read(old) and _is_read(new):
        if _places(old) != _places(new):
            yield "positions", _plain(old["rule"]), _plain(new["rule"])
        if _without_tokens(old["formula"]) != _without_tokens(new["formula"]):
            yield "formula", _formula(old["formula"]), _formula(new["formula"])
    if old["parameters"] != new["parameters"]:
        yield "parameters", _shapes_only_in(old, new), _shapes_only_in(new, old)
    if old["not used"] != new["not used"]:
        yield "parameters without effect", _names(old["not used"]), _names(new["not used"])
    if old["loss"] != new["loss"]:
        yield "loss", old["loss"] or "not determined", new["loss"] or "not determined"


def _is_read(head: dict[str, Any]) -> bool:
    """Whether headscope recognizes which positions a head reads, and prints its formula."""
    return head["kind"] != "other" and bool(head["formula"])


def _told_by_one(names: list[str], before: Heads, after: Heads, old: str, new: str) -> Iterator[str]:
    """The heads that headscope reads in one of the versions alone: something changed, and this page can't say what."""
    for title, first, second in (
        (f"Read in {new}, not in {old}", before, after),
        (f"Read in {old}, not in {new}", after, before),
    ):
        found = [name for name in names if _is_read(second[name]) and not _is_read(first[name])]
        told = ((name, f"{_formula(second[name]['formula'])}; {_plain(second[name]['rule'])}") for name in found)
        yield from _listed(title, told)


def _failure(head: dict[str, Any]) -> str:
    """Why a class is not traced, in its first clause."""
    first = re.split(r"; tried: |\. ", str(head["reason"]))[0]
    first += "...)" * (first.count("(") - first.count(")"))
    return _plain(first.removeprefix("an optional dependency is missing: "))


def _places(head: dict[str, Any]) -> tuple[str, list[Any]]:
    """Kind and positions, without what the tokenizer calls the token there and which module gives the states."""
    positions = [{**item, "token": "", "of": [source["layer"] for source in item["of"]]} for item in head["positions"]]
    return head["kind"], positions


def _without_tokens(formula: str) -> str:
    return re.sub(r"h\[[^\]]*\]+", "h[]", formula)


def _shapes_only_in(one: dict[str, Any], other: dict[str, Any]) -> str:
    """The parameters that the other head hasn't in this shape."""
    shapes = one["parameters"].items()
    return _names(f"{name} {_sizes(shape)}" for name, shape in shapes if other["parameters"].get(name) != shape)


def _sizes(shape: list[int | str]) -> str:
    return "x".join(map(str, shape))


def _names(items: Iterable[str]) -> str:
    return ", ".join(f"`{item}`" for item in items) or "none"


def _listed(title: str, items: Iterable[tuple[str, str]]) -> Iterator[str]:
    lines = [f"- `{name}`" + (f": {told}" if told else "") for name, told in items]
    if lines:
        yield f"### {title}\n"
        yield from lines
        yield ""


def _told(head: dict[str, Any]) -> str:
    return f"not traced: {_plain(head['reason'])}" if "reason" in head else _formula(head["formula"])


def _formula(text: str) -> str:
    return f"`{_cell(text)}`" if text else "headscope prints no formula"


def _plain(text: str) -> str:
    """Words of a report as Markdown shows them."""
    return _cell(re.sub(r"([\[_*`])", r"\\\1", text).replace("<", "&lt;"))


def _cell(text: str) -> str:
    """Text that ends no cell of a table."""
    return text.replace("|", "\\|")
