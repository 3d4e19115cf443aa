"""The pooling of heads of one line: kind, positions, formula and evidence, as a reader of the line gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headscope.core.trace.replay.picks import TokenNames
from headscope.facts import HeadTrace, Positions, Where
from tests.trace.heads import (
    EXAMPLES,
    FIRST,
    PAIRS,
    H,
    Head,
    Made,
    Text,
    column,
    deep,
    image,
    last_real,
    pixels,
    rows,
    towers,
    trace,
)
from tests.trace.pooling.readings import (
    BY_OPERATIONS,
    DEEP,
    MAPS,
    MEANS,
    NEAR_MISSES,
    OTHERS,
    PICKS,
    SOURCE,
    TOKENS_OF_IMAGES,
    TOWERS,
    K,
    Reading,
    _sources,
    seen,
)

IMPOSTORS: tuple[tuple[str, Head], ...] = (
    ("reversed", lambda s, h, m: s.fc(h.flip(1)[:, 0])),
    ("rolled", lambda s, h, m: s.fc(h.roll(1, 1)[:, 0])),
    ("summed up before", lambda s, h, m: s.fc(h.cumsum(1)[:, -1])),
    ("sorted", lambda s, h, m: s.fc(h.sort(1).values[:, -1])),
    ("zeros compete", lambda s, h, m: s.fc((h * column(m)).amax(1))),
    ("all positions, divided by the real ones", lambda s, h, m: s.fc(h.sum(1) / m.sum(1, keepdim=True))),
    ("divided by a number that is kept", lambda s, h, m: s.fc(h.sum(1) / s.query.new_full((), 512.0))),
    ("divided by its own norm", lambda s, h, m: s.fc((h * column(m)).sum(1) / (h * column(m)).sum(1).norm())),
    ("layers after the mask", lambda s, h, m: s.fc(s.dense(h * column(m)).sum(1) / column(m).sum(1))),
)
"""Operations that read as a pooling with a name; only numbers show that they are not."""


def check(traced: HeadTrace, reading: Reading) -> None:
    pooling = traced.pooling
    assert pooling.kind is reading.kind
    assert tuple(part.positions for part in pooling.parts) == reading.positions
    assert pooling.tokens == tuple(
        f"{part.positions.text}{_of(part, pooling.parts)}" for part in pooling.parts
    )  # the words and the values say the same
    assert traced.formula == (f"logits = {reading.formula}" if reading.formula else "")
    assert traced.verification.agrees is reading.agrees
    assert traced.verification.formula == ("equal" if reading.formula else "withheld")
    lines = [SOURCE[evidence.line - 1] for evidence in pooling.evidence]
    assert len(lines) == len(reading.marks), pooling.evidence
    assert all(mark in line for mark, line in zip(reading.marks, lines, strict=True)), lines
    assert all(evidence.file == "tests/trace/pooling/readings.py" for evidence in pooling.evidence)
    if reading.operations is not None:
        assert tuple(evidence.operation for evidence in pooling.evidence) == reading.operations


def _of(part: Any, parts: tuple[Any, ...]) -> str:
    if len({item.sources for item in parts}) == 1:
        return ""
    return f" of {part.sources[0].text}" + ("" if len(part.sources) == 1 else f" to {part.sources[-1].text}")


def _name(reading: Reading) -> str:
    return reading.formula or "withheld"


@pytest.mark.parametrize("reading", (*PICKS, *MEANS, *OTHERS, *NEAR_MISSES), ids=_name)
def test_a_head_is_read_as_its_line_says(reading: Reading) -> None:
    check(trace(Text(reading.head, reading.width)), reading)


@pytest.mark.parametrize(("name", "head"), IMPOSTORS, ids=[name for name, _ in IMPOSTORS])
def test_what_only_looks_like_a_pooling_is_contradicted(name: str, head: Head) -> None:
    traced = trace(Text(head))
    assert traced.verification.agrees is False
    assert "contradict" in traced.not_determined[0].reason


@pytest.mark.parametrize("reading", DEEP, ids=_name)
def test_layers_are_told_apart(reading: Reading) -> None:
    check(trace(deep(reading.head, reading.width)), reading)


@pytest.mark.parametrize("reading", TOWERS, ids=_name)
def test_two_towers_are_told_apart(reading: Reading) -> None:
    check(trace(towers(reading.head, reading.width), PAIRS), reading)


SIZES = ((4, 4), (2, 4), (1, 5), (1, 11), (1, 1))
"""Rows and columns of patches: sizes of their own, as many as features, as rows of the probe, and a single one."""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reading", TOKENS_OF_IMAGES, ids=_name)
def test_tokens_of_images_are_counted_whatever_their_number(reading: Reading, size: tuple[int, int]) -> None:
    check(trace(image(reading.head), pixels(*size)), reading)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reading", MAPS, ids=_name)
def test_maps_of_images_are_pooled_over_both_axes(reading: Reading, size: tuple[int, int]) -> None:
    check(trace(image(reading.head, as_tokens=False), pixels(*size)), reading)


@pytest.mark.parametrize("size", [(4, 4), (2, 4), (1, 5), (1, 11)])
@pytest.mark.parametrize("as_tokens", [True, False])
def test_positions_side_by_side_are_a_flatten(size: tuple[int, int], as_tokens: bool) -> None:
    module = image(lambda s, h: s.fc(h.flatten(1)), as_tokens=as_tokens, width=H * size[0] * size[1])
    traced = trace(module, pixels(*size))
    assert traced.pooling.kind is K.FLATTEN
    assert traced.formula == "logits = fc(flatten(h))"


@pytest.mark.parametrize(("item", "which"), [((slice(None), -1), "last "), ((slice(None), 0), "first "), (0, "")])
def test_which_of_several_end_tokens_is_read_follows_from_the_index_behind_the_mask(item: Any, which: str) -> None:
    def read(model: Any, h: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        marked = h[torch.arange(m.shape[1]) == (last_real(m) - 2).unsqueeze(1)]
        return model.fc(marked.view(len(h), -1, h.shape[-1])[item] if which else marked)

    assert trace(Text(read)).pooling.rule.startswith(f"position of the {which}eos token")


def test_the_tokenizers_names_stand_where_its_tokens_stand() -> None:
    names = TokenNames(first="[CLS]", eos="</s>")
    first = trace(Text(lambda s, h, m: s.fc(h[:, 0])), names=names)
    assert first.formula == "logits = fc(h[CLS])"
    assert first.pooling.rule.endswith("the family's tokenizer puts [CLS]")
    own = trace(Text(lambda s, h, m: s.fc(h[:, 0])), names=TokenNames("[CLS]", is_own=True))
    assert own.pooling.rule.endswith("where the tokenizer puts [CLS]")
    eos = trace(Text(lambda s, h, m: s.fc(h[rows(m), last_real(m) - 2])), names=names)
    assert eos.formula == "logits = fc(h[</s>])"
    assert eos.pooling.parts[0].positions == Positions(Where.EOS, token="</s>")
    second = trace(Text(lambda s, h, m: s.fc(h[:, 1])), names=names)
    assert second.formula == "logits = fc(h[1])"
    after = trace(Text(lambda s, h, m: s.fc(h[:, 1:][:, 0])), names=names)
    assert after.pooling.tokens == ("1",)
    most = Text(lambda s, h, m: s.fc(h[:, :-1][:, 0]))
    assert trace(most, names=names).pooling.parts[0].positions == Positions(Where.INDEX, 0, token="[CLS]")
    assert trace(most).pooling.parts[0].positions == FIRST


def test_a_head_without_tokens_says_that_it_found_none() -> None:
    plain = Made(lambda s, features: s.fc(features), fc=nn.Linear(H, 3))
    pooling = trace(plain, {"features": torch.randn(2, H)}).pooling
    assert pooling.kind is K.OTHER
    assert pooling.tokens == ()


def _rules() -> Iterator[tuple[str, str]]:
    """Each head of the tables, and how its pooling is put into words."""
    texts = (("PICKS", PICKS), ("MEANS", MEANS), ("OTHERS", OTHERS), ("NEAR_MISSES", NEAR_MISSES))
    for table, readings, build in (
        *((*text, Text) for text in texts),
        ("DEEP", DEEP, deep),
        ("TOWERS", TOWERS, towers),
    ):
        for source, one in zip(_sources(table), readings, strict=True):
            module, examples = build(one.head, one.width), PAIRS if build is towers else EXAMPLES
            # Only another run shows whether weights leave padding out.
            yield source, (trace(module).pooling if one.kind is K.WEIGHTED else seen(module, examples)).rule
    for table, images in (("TOKENS_OF_IMAGES", TOKENS_OF_IMAGES), ("MAPS", MAPS)):
        for source, one in zip(_sources(table), images, strict=True):
            for size in SIZES:
                found = seen(image(one.head, as_tokens=table != "MAPS"), pixels(*size)).rule
                yield f"{source}, {size[0]} x {size[1]}", found
    for source, (head, _) in zip(_sources("BY_OPERATIONS"), BY_OPERATIONS, strict=True):
        yield source, seen(Text(head)).rule


def test_every_pooling_is_put_into_words_as_the_golden_file_shows(same_as_golden: Callable[[Path, str], bool]) -> None:
    text = "".join(f"{source}\n    {rule}\n" for source, rule in _rules())
    assert same_as_golden(Path(__file__).parent / "golden" / "poolings.txt", text)
