"""Random heads that decide by sizes, positions or values, and what is true of them on many inputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headscope.core.facts.report import Report
from headscope.facts import PoolingKind, Where
from tests.trace.heads import LABELS, H, Text, last_real, masked_mean, rows

Pool = Callable[[Tensor, Tensor], Tensor]
CONSTANTS = (2, 3, 4, 7, 16, 33, 64, 100, 128, 150)
LIMIT = 64


POOLS: dict[str, Pool] = {
    "h[0]": lambda h, m: h[:, 0],
    "h[-1]": lambda h, m: h[:, -1],
    "mean(h)": lambda h, m: h.mean(1),
    "sum(h)": lambda h, m: h.sum(1),
    "max(h)": lambda h, m: h.amax(1),
    "mean(h[non-pad])": masked_mean,
    "h[last non-pad]": lambda h, m: h[rows(m), last_real(m)],
}
"""What each formula means, written apart from headscope."""

HEADS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "fc({})": lambda s, v: s.fc(v),
    "fc(tanh(dense({})))": lambda s, v: s.fc(s.dense(v).tanh()),
    "fc(norm({}))": lambda s, v: s.fc(s.norm(v)),
    "softmax(fc({}))": lambda s, v: s.fc(v).softmax(-1),
}


class _Positions:
    """Hidden states as formulas index them: by position."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden

    def __getitem__(self, item: int | slice | tuple[slice, ...]) -> Tensor:
        return self.hidden[item if isinstance(item, tuple) else (slice(None), item)]

    def __mul__(self, other: Tensor) -> Tensor:
        return self.hidden * other


def evaluated(pool: str, hidden: Tensor, mask: Tensor) -> Tensor:
    """What the text of a pooling says, for texts that are no name of one above."""
    meaning = {
        "h": _Positions(hidden), "mask": mask[..., None], "mean": lambda x: getattr(x, "hidden", x).mean(1),
        "sum": lambda x, axis=1: x.sum(axis), "cumsum": torch.cumsum, "le": torch.le,
        "stack": lambda x: x, "max": lambda x: x.amax(1) if x.dim() > len("bh") else x, "long": Tensor.long,
        "bitwise_and": lambda x, y: x.bool() & y.bool(),
    }  # fmt: skip
    found = eval(pool, {"__builtins__": {}}, meaning)
    assert isinstance(found, Tensor)
    return found


def meaning_of(formula: str) -> tuple[str, str]:
    """The head and the pooling in the text of a formula."""
    for head in sorted(HEADS, key=len, reverse=True):
        before, after = head.split("{}")
        if formula.startswith(before) and formula.endswith(after):
            return head, formula.removeprefix(before).removesuffix(after)
    raise AssertionError(f"unknown formula {formula}")


def count_of(h: Tensor) -> int:
    return len(h)


def _fits(h: Tensor, constant: int) -> bool:
    try:
        return bool(h[:, constant].numel())
    except IndexError:
        return False


def is_long(s: Any, h: Tensor) -> bool:
    return h.size(1) > s.limit


CONDITIONS: dict[str, Callable[[Any, Tensor, Tensor, int], bool]] = {
    "size below": lambda s, h, m, c: h.size(1) < c,
    "size at least": lambda s, h, m, c: c <= h.shape[1],
    "size is": lambda s, h, m, c: m.shape[1] == c,
    "size odd": lambda s, h, m, c: h.size(1) % 2 == 1,
    "size and one": lambda s, h, m, c: h.shape[1] & 1 == 0,
    "size of blocks": lambda s, h, m, c: h.shape[1] // c > 1,
    "size with features": lambda s, h, m, c: h.shape[1] * 2 + 1 > c,
    "size by attribute": lambda s, h, m, c: h.size(1) > s.limit,
    "size by global": lambda s, h, m, c: h.shape[-2] > LIMIT,
    "size by helper": lambda s, h, m, c: is_long(s, h),
    "size as float": lambda s, h, m, c: h.size(1) / c > 1,
    "size as int": lambda s, h, m, c: int(h.size(1)) > c,
    "size among": lambda s, h, m, c: h.size(1) in {c, c + 1},
    "batch above": lambda s, h, m, c: len(h) > 1,
    "batch is": lambda s, h, m, c: h.shape[0] == 2,
    "batch by helper": lambda s, h, m, c: count_of(h) > 3,
    "batch odd": lambda s, h, m, c: bool(h.size(0) % 2),
    "nested": lambda s, h, m, c: h.size(1) > c and h.size(1) < 2 * c,
    "kept above": lambda s, h, m, c: int(m.sum(1).max()) > c,
    "kept compared": lambda s, h, m, c: bool((m.sum(1) > c).any()),
    "left padded": lambda s, h, m, c: bool((m[:, 0] == 0).any()),
    "size in a table": lambda s, h, m, c: {c: True}.get(h.size(1), False),
    "size in a tuple": lambda s, h, m, c: tuple(m.shape) == (len(m), c),
    "size by a call": lambda s, h, m, c: _fits(h, c),
    "values": lambda s, h, m, c: bool(h.norm() > c),
    "one value": lambda s, h, m, c: float(h[0, 0, 0]) > 0,
}
POSITIONS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "first by arange": lambda h, m, c: (h * (torch.arange(h.shape[1]) < c)[None, :, None]).sum(1),
    "first by mask": lambda h, m, c: h.masked_fill((torch.arange(h.shape[1]) >= c)[None, :, None], 0.0).sum(1),
    "first kept": lambda h, m, c: masked_mean(h, (m.cumsum(1) <= c) & (m > 0)),
    "first kept as product": lambda h, m, c: masked_mean(h, m * (m.cumsum(1) <= c).long()),
    "index at most": lambda h, m, c: h[rows(m), last_real(m).clamp(max=c)],
    "index at least": lambda h, m, c: h[rows(m), last_real(m).clamp(min=min(c, h.shape[1] - 1))],
    "index minimum": lambda h, m, c: h[rows(m), torch.minimum(last_real(m), torch.tensor(c))],
    "gathered": lambda h, m, c: h.gather(1, last_real(m).clamp(max=c)[:, None, None].expand(-1, 1, H))[:, 0],
    "sliced by min": lambda h, m, c: h[:, : min(h.shape[1], c)].mean(1),
    "in pieces": lambda h, m, c: torch.stack([item.mean(1) for item in h.split(c, 1)]).amax(0),
    "in steps": lambda h, m, c: _in_steps(h),
    "narrowed": lambda h, m, c: h.narrow(1, 0, min(c, h.shape[1])).amax(1),
    "from the end": lambda h, m, c: h[:, -c:].mean(1),
    "decaying": lambda h, m, c: (h * torch.exp(-0.1 * torch.arange(h.shape[1]))[None, :, None]).sum(1),
    "halved": lambda h, m, c: halved(h[:, 0]),
}


def _in_steps(h: Tensor) -> Tensor:
    found = h[:, 0]
    for at in range(0, h.shape[1], 64):
        found = found + h[:, at]
    return found


def halved(v: Tensor) -> Tensor:
    while v.norm() > 1:
        v = v * 0.5
    return v


class Branching(Text):
    """A head that takes one of two poolings, or one that reads positions up to a number."""

    def __init__(self, pool: Callable[[Any, Tensor, Tensor], Tensor], head: str, limit: int) -> None:
        super().__init__(lambda s, h, m: HEADS[head](s, pool(s, h, m)))
        self.limit = limit


@dataclass(frozen=True)
class Drawn:
    """A head as it was drawn; `kind` is "none" for one without a branch, whose formula is `formula`."""

    kind: str
    constant: int
    module: Branching
    formula: str = ""


def draw(seed: int) -> Drawn:
    """A head: one in four without a branch."""
    luck = random.Random(seed)
    one, other = luck.sample(sorted(POOLS), 2)
    head, constant = luck.choice(sorted(HEADS)), luck.choice(CONSTANTS)
    kind = luck.choice(["none"] * 10 + sorted(CONDITIONS) + sorted(POSITIONS))
    if kind == "none":
        return Drawn(kind, 0, Branching(lambda s, h, m: POOLS[one](h, m), head, constant), head.format(one))
    if kind in POSITIONS:
        return Drawn(kind, constant, Branching(lambda s, h, m: POSITIONS[kind](h, m, constant), head, constant))

    def pool(s: Any, h: Tensor, m: Tensor) -> Tensor:
        return POOLS[one if CONDITIONS[kind](s, h, m, constant) else other](h, m)

    return Drawn(kind, constant, Branching(pool, head, constant))


def inputs_of(drawn: Drawn, seed: int, count: int = 40) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids and masks of many lengths and batches, some at the constant."""
    luck, near = random.Random(seed), [drawn.constant + at for at in (-1, 0, 1)]
    torch.manual_seed(seed)
    for _ in range(count):
        length, batch = luck.choice([luck.randint(1, 200), luck.randint(1, 30), *near]), luck.randint(1, 4)
        length = max(length, 1)
        mask, style = torch.ones(batch, length, dtype=torch.long), luck.choice(["full", "right", "left", "mixed"])
        for row in range(batch):
            padded = 0 if style == "full" else luck.randint(0, length - 1)
            side = luck.choice(["right", "left"]) if style == "mixed" else style
            if padded:
                mask[row, slice(None, padded) if side == "left" else slice(length - padded, None)] = 0
        yield torch.randint(3, 40, (batch, length)), mask


def falsehood(drawn: Drawn, report: Report, seed: int) -> str:
    """What a report says with confidence that isn't true on some input; "" for nothing."""
    gaps = {item.topic for item in report.not_determined}
    formula, pooling = report.head.formula.removeprefix("logits = "), report.head.pooling
    head, pool = meaning_of(formula) if formula else ("", "")
    for ids, mask in inputs_of(drawn, seed):
        length = ids.shape[1]
        is_said = ("head path without padding" in gaps and bool(mask.all())) or (
            length > 23 and "pooling of long texts" in gaps
        )
        if is_said or (length == 1 and "head path of a single token" in gaps):
            continue
        hidden = drawn.module.encoder(ids).detach().requires_grad_()
        try:
            scores = drawn.module.head(drawn.module, hidden, mask)
        except (IndexError, RuntimeError):  # this head does not take such inputs
            continue
        if formula:
            pooled = POOLS[pool](hidden, mask) if pool in POOLS else evaluated(pool, hidden, mask)
            expected = HEADS[head](drawn.module, pooled)
            if not torch.allclose(scores, expected, rtol=1e-3, atol=1e-4):
                return f"{formula} on {tuple(ids.shape)}"
        if pooling.parts and pooling.kind not in {PoolingKind.OTHER, PoolingKind.WEIGHTED}:
            (scores * torch.randn(LABELS)).sum().backward()
            for row, moved in enumerate(hidden.grad.abs().sum(-1) > 0):
                read = set(moved.nonzero().flatten().tolist())
                named = {at for part in pooling.parts for at in _named(part.positions, mask[row])}
                if read - named or (named - read and pooling.kind is not PoolingKind.MAX):
                    return f"{pooling.rule} on {tuple(ids.shape)}"
    return ""


def _named(positions: object, mask: Tensor) -> list[int]:
    """The positions of one row, by the meaning of their rule."""
    where, kept = positions.where, mask.nonzero().flatten().tolist()  # type: ignore[attr-defined]
    everything = list(range(len(mask)))
    if where is Where.INDEX:
        return [positions.index % len(mask)]  # type: ignore[attr-defined]
    if where is Where.RANGE:
        return everything[positions.index : positions.stop]  # type: ignore[attr-defined]
    return {Where.LAST_NON_PAD: kept[-1:], Where.FIRST_NON_PAD: kept[:1], Where.NON_PAD: kept}.get(where, everything)
