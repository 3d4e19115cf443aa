"""Heads written as lambdas, and how each must be read."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headscope.core.trace.pooling.pooling import read_pooling
from headscope.core.trace.replay.picks import HeadSteps, TokenNames
from headscope.core.trace.slice.head_slice import read_sources
from headscope.core.trace.slice.stages import read_steps
from headscope.facts import Pooling, PoolingKind, Positions, Where
from tests.trace.heads import (
    ALL,
    BY_ROW,
    EACH,
    EXAMPLES,
    FIRST,
    LAST,
    LAST_NON_PAD,
    NON_PAD,
    H,
    Head,
    at,
    column,
    last_real,
    rows,
    run,
    run_of,
)

K = PoolingKind
SOURCE = Path(__file__).read_text(encoding="utf-8").splitlines()


def numbers(mask: Tensor) -> Tensor:
    return torch.arange(mask.shape[1])


@dataclass(frozen=True)
class Reading:
    """What a person reads in a head: `marks` is what the lines of the evidence hold, in order.

    `formula` is "" where it reads a value without a name; `agrees` is None where the rule makes no claim that gradients
    could settle.
    """

    head: Any
    kind: PoolingKind
    positions: tuple[Positions, ...]
    formula: str
    marks: tuple[str, ...]
    agrees: bool | None = True
    width: int = H
    operations: tuple[str, ...] | None = None


PICKS = (
    Reading(lambda s, h, m: s.fc(h[:, 0]), K.FIRST_TOKEN, (FIRST,), "fc(h[0])", ("h[:, 0]",)),
    Reading(lambda s, h, m: s.fc(h[:, -1]), K.LAST_TOKEN, (LAST,), "fc(h[-1])", ("h[:, -1]",)),
    Reading(lambda s, h, m: s.fc(h[:, -2]), K.TOKEN_AT, (at(-2),), "fc(h[-2])", ("h[:, -2]",)),
    Reading(lambda s, h, m: s.fc(h[:, 3]), K.TOKEN_AT, (at(3),), "fc(h[3])", ("h[:, 3]",)),
    Reading(lambda s, h, m: s.fc(h[..., 0, :]), K.FIRST_TOKEN, (FIRST,), "fc(h[0])", ("h[..., 0, :]",)),
    Reading(lambda s, h, m: s.fc(h[:, :1].squeeze(1)), K.FIRST_TOKEN, (FIRST,), "fc(h[0])", ("h[:, :1]",)),
    Reading(lambda s, h, m: s.fc(h[:, -1:].squeeze(1)), K.LAST_TOKEN, (LAST,), "fc(h[-1])", ("h[:, -1:]",)),
    Reading(lambda s, h, m: s.fc(h[:, [0]].squeeze(1)), K.FIRST_TOKEN, (FIRST,), "fc(h[0])", ("h[:, [0]]",)),
    Reading(lambda s, h, m: s.fc(h.narrow(1, 2, 1).squeeze(1)), K.TOKEN_AT, (at(2),), "fc(h[2])", ("narrow(1, 2, 1)",)),
    Reading(lambda s, h, m: s.fc(h.index_select(1, torch.tensor([0])).squeeze(1)), K.FIRST_TOKEN, (FIRST,), "fc(h[0])",
            ("index_select(1",)),
    Reading(lambda s, h, m: s.fc(h.narrow(1, 1, 4).mean(1)), K.MEAN, (run_of(1, 5),), "fc(mean(h[1:5]))",
            ("h.narrow(1, 1, 4)", "h.narrow(1, 1, 4)")),
    Reading(lambda s, h, m: s.fc(h[:, 0, None].squeeze(1)), K.FIRST_TOKEN, (FIRST,), "fc(h[0])", ("h[:, 0, None]",)),
    Reading(lambda s, h, m: s.fc(h[None, :, 2].squeeze(0)), K.TOKEN_AT, (at(2),), "fc(h[2])", ("h[None, :, 2]",)),
    Reading(lambda s, h, m: s.fc(h.select(1, 0)), K.FIRST_TOKEN, (FIRST,), "fc(h[0])", ("h.select(1, 0)",)),
    Reading(lambda s, h, m: s.fc(h.select(dim=1, index=-1)), K.LAST_TOKEN, (LAST,), "fc(h[-1])", ("h.select(",)),
    Reading(lambda s, h, m: s.fc(torch.select(h, -2, 2)), K.TOKEN_AT, (at(2),), "fc(h[2])", ("torch.select(",)),
    Reading(lambda s, h, m: s.fc(h.transpose(1, 2)[:, :, 0]), K.FIRST_TOKEN, (FIRST,), "fc(h[0])", ("[:, :, 0]",)),
    Reading(lambda s, h, m: s.fc(h[:, torch.tensor([2])].squeeze(1)), K.TOKEN_AT, (at(2),), "fc(h[2])",
            ("torch.tensor([2])",)),
    Reading(lambda s, h, m: s.fc(h[:, 1:][:, 0]), K.TOKEN_AT, (at(1),), "fc(h[1:][0])", ("h[:, 1:]", "[:, 0]")),
    Reading(lambda s, h, m: s.fc(h[:, 1:][:, -1]), K.LAST_TOKEN, (LAST,), "fc(h[1:][-1])", ("h[:, 1:]", "[:, -1]")),
    Reading(lambda s, h, m: s.fc(h[:, :-1][:, -1]), K.TOKEN_AT, (at(-2),), "fc(h[:-1][-1])", ("h[:, :-1]", "[:, -1]")),
    Reading(lambda s, h, m: s.fc(h[:, 2:6][:, -1]), K.TOKEN_AT, (at(5),), "fc(h[2:6][-1])", ("h[:, 2:6]", "[:, -1]")),
    Reading(lambda s, h, m: s.fc(h[rows(m), last_real(m)]), K.LAST_NON_PAD_TOKEN, (LAST_NON_PAD,),
            "fc(h[last non-pad])", ("h[rows(m)",)),
    Reading(lambda s, h, m: s.fc(h)[rows(m), last_real(m)], K.LAST_NON_PAD_TOKEN, (LAST_NON_PAD,),
            "fc(h)[last non-pad]", ("s.fc(h)[",)),
    Reading(lambda s, h, m: s.fc(h.gather(1, last_real(m).view(-1, 1, 1).expand(-1, 1, H)).squeeze(1)),
            K.LAST_NON_PAD_TOKEN, (LAST_NON_PAD,), "fc(h[last non-pad])", ("h.gather(1",)),
    Reading(lambda s, h, m: s.fc(torch.take_along_dim(h, last_real(m).view(-1, 1, 1), 1).squeeze(1)),
            K.LAST_NON_PAD_TOKEN, (LAST_NON_PAD,), "fc(h[last non-pad])", ("take_along_dim(",)),
    Reading(lambda s, h, m: s.fc(h[torch.arange(m.shape[1]) == last_real(m).unsqueeze(1)]), K.LAST_NON_PAD_TOKEN,
            (LAST_NON_PAD,), "fc(h[last non-pad])", ("h[torch.arange(",)),
    Reading(lambda s, h, m: s.fc(h[rows(m), m.argmax(1)]), K.FIRST_TOKEN, (Positions(Where.FIRST_NON_PAD),),
            "fc(h[first non-pad])", ("h[rows(m)",)),
    Reading(lambda s, h, m: s.fc(h[rows(m), (last_real(m) + 1).clamp(max=m.shape[1] - 1)]), K.LAST_NON_PAD_TOKEN,
            (Positions(Where.AFTER_LAST_NON_PAD),), "fc(h[after last non-pad])", ("h[rows(m)",)),
    Reading(lambda s, h, m: s.fc(h[rows(m), last_real(m) - 2]), K.EOS_TOKEN, (Positions(Where.EOS),), "fc(h[eos])",
            ("h[rows(m)",)),
    Reading(lambda s, h, m: s.fc(h.split([1, h.shape[1] - 1], 1)[0].squeeze(1)), K.FIRST_TOKEN, (FIRST,), "fc(h[0])",
            ("h.split(",)),
    Reading(lambda s, h, m: s.fc(h.unbind(1)[2]), K.TOKEN_AT, (at(2),), "fc(h[2])", ("h.unbind(1)",)),
    Reading(lambda s, h, m: s.fc(s.norm(h)[:, 0]), K.FIRST_TOKEN, (FIRST,), "fc(norm(h)[0])", ("s.norm(h)[:, 0]",)),
    Reading(lambda s, h, m: s.fc(torch.tanh(s.dense(h[:, 0]))), K.FIRST_TOKEN, (FIRST,), "fc(tanh(dense(h[0])))",
            ("h[:, 0]",)),
    Reading(lambda s, h, m: s.fc(h[:, 0] / 2), K.FIRST_TOKEN, (FIRST,), "fc(h[0] / 2)", ("h[:, 0]",)),
    Reading(lambda s, h, m: s.fc(1 - h[:, 0]), K.FIRST_TOKEN, (FIRST,), "fc(1 - h[0])", ("h[:, 0]",)),
    Reading(lambda s, h, m: s.fc(h[:, 0]) * s.scale, K.FIRST_TOKEN, (FIRST,), "fc(h[0]) * scale", ("h[:, 0]",)),
)  # fmt: skip

MEANS = (
    Reading(lambda s, h, m: s.fc(h.mean(1)), K.MEAN, (ALL,), "fc(mean(h))", ("h.mean(1)",)),
    Reading(lambda s, h, m: s.fc(h.mean(1, keepdim=True).squeeze(1)), K.MEAN, (ALL,), "fc(mean(h))", (".mean(",)),
    Reading(lambda s, h, m: s.fc(torch.mean(h, dim=-2)), K.MEAN, (ALL,), "fc(mean(h))", (".mean(",)),
    Reading(lambda s, h, m: s.fc(h.sum(1) / h.shape[1]), K.MEAN, (ALL,), "fc(mean(h))", ("h.sum(1)", "/ h.shape[1]")),
    Reading(lambda s, h, m: s.fc(h[:, 1:].mean(1)), K.MEAN, (run_of(1),), "fc(mean(h[1:]))", ("h[:, 1:]", ".mean(1)")),
    Reading(lambda s, h, m: s.fc(h[:, 1:-1].mean(1)), K.MEAN, (run_of(1, -1),), "fc(mean(h[1:-1]))",
            ("h[:, 1:-1]", ".mean(1)")),
    Reading(lambda s, h, m: s.fc(h[:, :7].mean(1)), K.MEAN, (run_of(0, 7),), "fc(mean(h[:7]))",
            ("h[:, :7]", ".mean(1)")),
    Reading(lambda s, h, m: s.fc(h[:, 1:][:, 1:].mean(1)), K.MEAN, (run_of(2),), "fc(mean(h[1:][1:]))",
            ("h[:, 1:]", "[:, 1:]", ".mean(1)")),
    Reading(lambda s, h, m: s.fc(h[:, 1:].sum(1) / (h.shape[1] - 1)), K.MEAN, (run_of(1),), "fc(mean(h[1:]))",
            ("h[:, 1:]", ".sum(1)", "/ (h.shape[1] - 1)")),
    Reading(lambda s, h, m: s.fc(h.split([1, h.shape[1] - 1], 1)[1].mean(1)), K.MEAN, (run_of(1),), "fc(mean(h[1:]))",
            ("h.split(", ".mean(1)")),
    Reading(lambda s, h, m: s.fc((h * column(m)).sum(1) / m.sum(1, keepdim=True)), K.MASKED_MEAN, (NON_PAD,),
            "fc(mean(h[non-pad]))", ("h * ", ".sum(1)", " / ")),
    Reading(lambda s, h, m: s.fc((h * column(m).float()).sum(1) / column(m).float().sum(1).clamp(min=1e-9)),
            K.MASKED_MEAN, (NON_PAD,), "fc(mean(h[non-pad]))", ("h * ", ".sum(1)", " / ")),
    Reading(lambda s, h, m: s.fc(h.masked_fill(column(m) == 0, 0).sum(1) / m.sum(1, keepdim=True)), K.MASKED_MEAN,
            (NON_PAD,), "fc(mean(h[non-pad]))", (".masked_fill(", ".sum(1)", " / ")),
    Reading(lambda s, h, m: s.fc(h.masked_fill(~column(m).bool(), 0).sum(1) / m.sum(1, keepdim=True)), K.MASKED_MEAN,
            (NON_PAD,), "fc(mean(h[non-pad]))", (".masked_fill(", ".sum(1)", " / ")),
    Reading(lambda s, h, m: s.fc(torch.where(column(m).bool(), h, 0.0).sum(1) / m.sum(1, keepdim=True)), K.MASKED_MEAN,
            (NON_PAD,), "fc(sum(where(mask, h, 0)) / sum(mask, 1))", ("torch.where(", ".sum(1)", " / ")),
)  # fmt: skip

OTHERS = (
    Reading(lambda s, h, m: s.fc(h.max(1).values), K.MAX, (ALL,), "fc(max(h))", ("h.max(1)",)),
    Reading(lambda s, h, m: s.fc(torch.max(h, 1)[0]), K.MAX, (ALL,), "fc(max(h))", ("torch.max(h",)),
    Reading(lambda s, h, m: s.fc(h.masked_fill(column(m) == 0, -math.inf).max(1).values), K.MAX, (NON_PAD,),
            "fc(max(masked_fill(h, ~mask, -inf)))", (".masked_fill(", ".max(1)")),
    Reading(lambda s, h, m: s.fc(h.masked_fill(~column(m).bool(), -1e9).amax(1)), K.MAX, (NON_PAD,),
            "fc(max(masked_fill(h, ~mask, -1e+09)))", (".masked_fill(", ".amax(1)")),
    Reading(lambda s, h, m: s.fc(h[:, 1:].amax(1)), K.MAX, (run_of(1),), "fc(max(h[1:]))", ("h[:, 1:]", ".amax(1)")),
    Reading(lambda s, h, m: s.fc((h * s.attention(h).softmax(1)).sum(1)), K.WEIGHTED, (ALL,),
            "fc(sum(h * softmax(attention(h))))", ("h * ", ".sum(1)"), None),
    Reading(lambda s, h, m: s.fc((h * s.attention(h).masked_fill(column(m) == 0, -1e9).softmax(1)).sum(1)), K.WEIGHTED,
            (NON_PAD,), "fc(sum(h * softmax(masked_fill(attention(h), ~mask, -1e+09))))",
            ("masked_fill", "h * ", ".sum(1)"), None),
    Reading(lambda s, h, m: s.fc((h * (s.attention(h) + (1.0 - column(m)) * -1e9).softmax(1)).sum(1)), K.WEIGHTED,
            (NON_PAD,), "fc(sum(h * softmax(attention(h) + ~mask * -1e+09)))", ("h * ", ".sum(1)"), None),
    Reading(lambda s, h, m: s.fc((h * s.attention(h)).mean(1)), K.WEIGHTED, (ALL,), "fc(mean(h * attention(h)))",
            ("h * ", ".mean(1)"), None),
    Reading(lambda s, h, m: s.fc(torch.bmm(s.attention(h).softmax(1).transpose(1, 2), h).squeeze(1)), K.WEIGHTED,
            (ALL,), "fc(bmm(softmax(attention(h)), h))", ("torch.bmm(",), None),
    Reading(lambda s, h, m: s.fc(torch.einsum("btx,bth->bh", s.attention(h).softmax(1), h)), K.WEIGHTED, (ALL,),
            "fc(einsum('btx,bth->bh', softmax(attention(h)), h))", ("torch.einsum(",), None),
    Reading(lambda s, h, m: s.fc(nn.functional.scaled_dot_product_attention(s.query.expand(len(h), 1, H), h, h)[:, 0]),
            K.WEIGHTED, (ALL,), "fc(scaled_dot_product_attention(query, h, h))", ("scaled_dot_product_attention(",),
            None),
    Reading(lambda s, h, m: s.fc(torch.cat([h[:, 0], h.mean(1)], -1)), K.CONCAT, (FIRST, ALL), "fc([h[0]; mean(h)])",
            ("h[:, 0]", "h.mean(1)"), width=2 * H),
    Reading(lambda s, h, m: s.fc(torch.cat([h.mean(1), h.amax(1)], -1)), K.CONCAT, (ALL, ALL), "fc([mean(h); max(h)])",
            ("h.mean(1)", "h.amax(1)"), None, 2 * H),
    Reading(lambda s, h, m: s.fc((h[:, 0] + h[:, -1]) / 2), K.CONCAT, (FIRST, LAST), "fc((h[0] + h[-1]) / 2)",
            ("h[:, 0]", "h[:, -1]")),
    Reading(lambda s, h, m: s.fc(h[:, 0] - h.mean(1)), K.CONCAT, (FIRST, ALL), "fc(h[0] - mean(h))",
            ("h[:, 0]", "h.mean(1)")),
    Reading(lambda s, h, m: s.fc(h[:, 0] * h[:, 1]), K.CONCAT, (FIRST, at(1)), "fc(h[0] * h[1])",
            ("h[:, 0]", "h[:, 1]")),
    Reading(lambda s, h, m: s.fc(torch.atan2(h[:, 0], h[:, 1])), K.CONCAT, (FIRST, at(1)), "fc(atan2(h[0], h[1]))",
            ("h[:, 0]", "h[:, 1]")),
    Reading(lambda s, h, m: s.fc(torch.cat([h[:, 0], h[:, 0]], -1)), K.FIRST_TOKEN, (FIRST,), "fc([h[0]; h[0]])",
            ("h[:, 0]",), width=2 * H),
    Reading(lambda s, h, m: s.fc(h), K.NONE, (EACH,), "fc(h)", ()),
)  # fmt: skip

NEAR_MISSES = (
    Reading(lambda s, h, m: s.fc(h.sum(1)), K.OTHER, (ALL,), "fc(sum(h))", (".sum(1)",), None),
    Reading(lambda s, h, m: s.fc(h.sum(1) / 512), K.OTHER, (ALL,), "fc(sum(h) / 512)", (".sum(1)", "/ 512"), None),
    Reading(lambda s, h, m: s.fc((h * column(m)).sum(1)), K.OTHER, (NON_PAD,), "fc(sum(h * mask))", ("h * ", ".sum(1)"),
            None),
    Reading(lambda s, h, m: s.fc((h * column(m)).sum(1) / m.shape[1]), K.OTHER, (NON_PAD,),
            "fc(sum(h * mask) / sequence)", ("h * ", ".sum(1)", "/ m.shape[1]"), None),
    Reading(lambda s, h, m: s.fc((h * column(m)).mean(1)), K.OTHER, (ALL,), "fc(mean(h * mask))", ("h * ", ".mean(1)"),
            None),
    Reading(lambda s, h, m: s.fc(h[:, ::2].mean(1)), K.OTHER, (BY_ROW,), "fc(mean(h[:, ::2]))",
            ("h[:, ::2]", ".mean(1)"), None),
    Reading(lambda s, h, m: s.fc(h[:, -3:].mean(1)), K.OTHER, (BY_ROW,), "fc(mean(h[:, -3:]))",
            ("h[:, -3:]", ".mean(1)"), None),
    Reading(lambda s, h, m: s.fc(h[:, 1:].sum(1)), K.OTHER, (run_of(1),), "fc(sum(h[1:]))", ("h[:, 1:]", ".sum(1)"),
            None),
    Reading(lambda s, h, m: s.fc(h[rows(m), m.sum(1) - 1]), K.OTHER, (BY_ROW,), "", ("h[rows(m)",), None,
            operations=("index",)),
    Reading(lambda s, h, m: s.fc(h[:, 1:][rows(m), last_real(m) - 1]), K.OTHER, (ALL,), "", ("h[:, 1:]", "[rows(m)"),
            None),
    Reading(lambda s, h, m: s.fc(h.gather(1, (last_real(m).view(-1, 1, 1) - torch.arange(H)).clamp(0)).squeeze(1)),
            K.OTHER, (ALL,), "", ("h.gather(",), None),
    Reading(lambda s, h, m: s.fc(h.std(1)), K.OTHER, (ALL,), "fc(std(h, 1))", ("h.std(1)",), None),
    Reading(lambda s, h, m: s.fc(h.amin(1)), K.OTHER, (ALL,), "fc(amin(h, 1))", ("h.amin(1)",), None),
    Reading(lambda s, h, m: s.fc(h.logsumexp(1)), K.OTHER, (ALL,), "fc(logsumexp(h, 1))", ("h.logsumexp(1)",), None),
    Reading(lambda s, h, m: s.fc(((h @ h.transpose(1, 2)).softmax(-1) @ h)[:, 0]), K.OTHER, (FIRST,),
            "fc((softmax(h @ h.T) @ h)[0])", ("h @ h", "@ h", "[:, 0]"), None),
    Reading(lambda s, h, m: s.fc((h + (h @ h.transpose(1, 2)).softmax(-1) @ h)[:, 0]), K.OTHER, (FIRST,),
            "fc((h + softmax(h @ h.T) @ h)[0])", ("h @ h", "@ h", "[:, 0]"), None),
    Reading(lambda s, h, m: s.fc((h @ h.transpose(1, 2)).softmax(-1) @ h), K.OTHER, (EACH,), "fc(softmax(h @ h.T) @ h)",
            ("h @ h", "@ h"), None),
    Reading(lambda s, h, m: s.fc(h - h.mean(1, keepdim=True)), K.OTHER, (EACH,), "fc(h - mean(h))", (), None),
    Reading(lambda s, h, m: s.fc(s.lstm(h)[0][:, -1]), K.OTHER, (LAST,), "fc(lstm(h)[-1])", ("s.lstm(h)", "[:, -1]"),
            None),
    Reading(lambda s, h, m: s.fc(s.lstm(h)[1][0][-1]), K.OTHER, (ALL,), "fc(lstm[1](h))", ("s.lstm(h)",), None),
    Reading(lambda s, h, m: s.fc(s.lstm(h)[0]), K.OTHER, (EACH,), "fc(lstm(h))", ("s.lstm(h)",), None),
)  # fmt: skip
"""Heads that look like a pooling with a name, and have none."""


DEEP = (
    Reading(lambda s, h, m: s.fc(torch.cat([h[-n][:, 0] for n in (1, 2, 3, 4)], -1)), K.CONCAT, (FIRST,) * 4,
            "fc([h[-1][0]; h[-2][0]; h[-3][0]; h[-4][0]])", ("[:, 0]",) * 4, width=4 * H),
    Reading(lambda s, h, m: s.fc(torch.cat([h[-4][:, 0], h[-1].mean(1)], -1)), K.CONCAT, (FIRST, ALL),
            "fc([h[-4][0]; mean(h[-1])])", ("[:, 0]", ".mean(1)"), width=2 * H),
    Reading(lambda s, h, m: s.fc(h[-2][:, 0]), K.FIRST_TOKEN, (FIRST,), "fc(h[-2][0])", ("[:, 0]",)),
    Reading(lambda s, h, m: s.fc(h[-1][:, 0]), K.FIRST_TOKEN, (FIRST,), "fc(h[0])", ("[:, 0]",)),
    Reading(lambda s, h, m: s.fc(h[0].mean(1)), K.MEAN, (ALL,), "fc(mean(h[-5]))", (".mean(1)",)),
    Reading(lambda s, h, m: s.fc((torch.stack(h[1:]) * s.weights[1:].softmax(0).view(-1, 1, 1, 1)).sum(0)[:, 0]),
            K.FIRST_TOKEN, (FIRST,), "fc(sum(stack(h[-4], ..., h[-1]) * softmax(weights[1:]), 0)[0])", ("[:, 0]",)),
    Reading(lambda s, h, m: s.fc(torch.stack(h[-3:]).mean(0).mean(1)), K.MEAN, (ALL,),
            "fc(mean(mean(stack(h[-3], h[-2], h[-1]), 0)))", (".mean(1)",)),
    Reading(lambda s, h, m: s.fc(torch.cat([(h[-1] + h[-2])[:, 0], h[-3][:, -1]], -1)), K.CONCAT, (FIRST, LAST),
            "fc([(h[-1] + h[-2])[0]; h[-3][-1]])", ("[:, 0]", "[:, -1]"), width=2 * H),
    Reading(lambda s, h, m: s.fc(h[-1][:, 0] + h[-2][:, 0]), K.CONCAT, (FIRST, FIRST), "fc(h[-1][0] + h[-2][0])",
            ("[:, 0]", "[:, 0]")),
)  # fmt: skip


TOWERS = (
    Reading(lambda s, a, b: s.fc(torch.cat([a[:, 0], b[:, 0], (a[:, 0] - b[:, 0]).abs()], -1)), K.CONCAT,
            (FIRST, FIRST), "fc([h1[0]; h2[0]; abs(h1[0] - h2[0])])", ("a[:, 0]", "b[:, 0]"), width=3 * H),
    Reading(lambda s, a, b: s.fc(a[:, 0] - b[:, -1]), K.CONCAT, (FIRST, LAST), "fc(h1[0] - h2[-1])",
            ("a[:, 0]", "b[:, -1]")),
)  # fmt: skip


TOKENS_OF_IMAGES = (
    Reading(lambda s, h: s.fc(h[:, 0]), K.FIRST_TOKEN, (FIRST,), "fc(h[0])", ("[:, 0]",)),
    Reading(lambda s, h: s.fc(h.mean(1)), K.MEAN, (ALL,), "fc(mean(h))", (".mean(1)",)),
    Reading(lambda s, h: s.fc(h.sum(1) / h.shape[1]), K.MEAN, (ALL,), "fc(mean(h))", (".sum(1)", "/ h.shape[1]")),
    Reading(lambda s, h: s.fc(h), K.NONE, (EACH,), "fc(h)", ()),
)  # fmt: skip
MAPS = (
    Reading(lambda s, h: s.fc(s.pool(h).flatten(1)), K.SPATIAL_MEAN, (ALL,), "fc(mean(h))", ("s.pool(h)",)),
    Reading(lambda s, h: s.fc(h.mean((2, 3))), K.SPATIAL_MEAN, (ALL,), "fc(mean(h))", ("h.mean((2, 3))",)),
    Reading(lambda s, h: s.fc(h.flatten(2).mean(2)), K.MEAN, (ALL,), "fc(mean(h))", (".mean(2)",)),
    Reading(lambda s, h: s.fc(s.largest(h).flatten(1)), K.MAX, (ALL,), "fc(max(h))", ("s.largest(h)",)),
    Reading(lambda s, h: s.fc(h.amax((-2, -1))), K.MAX, (ALL,), "fc(max(h))", ("h.amax(",)),
)  # fmt: skip


def seen(module: nn.Module, examples: Any = EXAMPLES) -> Pooling:
    """What the operations of one run say, before numbers and other runs are asked."""
    found = run(module, examples)
    known = HeadSteps(found.head, read_steps(found.head), found.axes, TokenNames(), read_sources(found.head))
    return read_pooling(known).pooling


def across(h: Tensor) -> Tensor:
    """Features before tokens, as convolutions take them."""
    return h.transpose(1, 2)


BY_OPERATIONS: tuple[tuple[Head, PoolingKind], ...] = (
    # what two tensors have in common, and what only one of them has
    (lambda s, h, m: s.fc((h + h * column(m)).sum(1)), K.OTHER),
    (lambda s, h, m: s.fc((h + h * s.attention(h)).sum(1)), K.WEIGHTED),
    (lambda s, h, m: s.fc((nn.functional.interpolate(across(h), 2) * torch.tensor([1.0, 3.0])).sum(2)), K.WEIGHTED),
    (lambda s, h, m: s.fc((h[:, 1:] + h[:, :-1]).mean(1)), K.OTHER),
    (lambda s, h, m: s.fc((h[:, 1:] + h[:, 1:]).mean(1)), K.MEAN),
    (lambda s, h, m: s.fc(h[:, 1:].view(len(h), h.shape[1] // 2, 2, H).mean(2).mean(1)), K.MEAN),
    (lambda s, h, m: s.fc(h[:, 1:].reshape(len(h), h.shape[1] // 2, 2, H).mean(2).mean(1)), K.MEAN),
    # a run of positions, or not
    (lambda s, h, m: s.fc(h[:, ::2].amax(1)), K.OTHER),
    (lambda s, h, m: s.fc(h[:, ::2].sum(1) / s.scale), K.OTHER),
    (lambda s, h, m: s.fc(h[:, ::2][:, 0]), K.OTHER),
    (lambda s, h, m: s.fc(functional.pad(h, (0, 0, 0, 3)).mean(1)), K.OTHER),
    (lambda s, h, m: s.fc(functional.pad(h, (0, 0, 2, 0))[:, 0]), K.OTHER),
    (lambda s, h, m: s.fc(h[:, 2:][:, -2]), K.TOKEN_AT),
    (lambda s, h, m: s.fc(h[:, 2:][:, 1]), K.TOKEN_AT),
    (lambda s, h, m: s.fc(h[:, :6][:, -2]), K.TOKEN_AT),
    (lambda s, h, m: s.fc(h[:, :-1][:, 0]), K.FIRST_TOKEN),
    # what a sum is divided by
    (lambda s, h, m: s.fc(h.sum(1) / 2 / 3), K.OTHER),
    (lambda s, h, m: s.fc(h[:, 1:].sum(1) / h.shape[1]), K.OTHER),
    (lambda s, h, m: s.fc(h[:, 0] / 11), K.FIRST_TOKEN),
    (lambda s, h, m: s.fc((h * column(m)).sum(1) / 7), K.OTHER),
    # pieces of the text
    (lambda s, h, m: s.fc(h.split([2, 9], 1)[0].mean(1)), K.MEAN),
    (lambda s, h, m: s.fc(h.split([2, 9], 1)[1].mean(1)), K.MEAN),
    (lambda s, h, m: s.fc(h.split([1, 3, 7], 1)[1].mean(1)), K.MEAN),
    (lambda s, h, m: s.fc(h.split([1, 10], 1)[1].mean(1, keepdim=True).squeeze(1)), K.MEAN),
    (lambda s, h, m: s.fc(h.split([3, 1, 7], 1)[1].squeeze(1)), K.TOKEN_AT),
    (lambda s, h, m: s.fc(torch.cat(h.split(4, 2)[::-1], 2)[:, 0]), K.FIRST_TOKEN),
    # what mixes positions, and what doesn't
    (lambda s, h, m: s.fc((h @ s.dense.weight)[:, 0]), K.FIRST_TOKEN),
    (lambda s, h, m: s.fc((h + s.dense(h))[:, 0]), K.FIRST_TOKEN),
    (lambda s, h, m: s.fc(torch.bmm((h @ across(h)).softmax(-1), h)[:, 0]), K.OTHER),
    (lambda s, h, m: s.fc(torch.einsum("bth,buh->bth", h, h)[:, 0]), K.OTHER),
    (lambda s, h, m: s.fc(functional.scaled_dot_product_attention(h, h, h)[:, 0]), K.OTHER),
    (lambda s, h, m: s.fc(nn.MultiheadAttention(H, 2, batch_first=True)(h, h, h)[0][:, 0]), K.OTHER),
    (lambda s, h, m: s.fc(s.lstm(h[:, 1:])[0][:, -1]), K.OTHER),
    (lambda s, h, m: s.fc((h - h.mean(1, keepdim=True))[:, 0]), K.OTHER),
    (lambda s, h, m: s.fc((h - h.mean(1, keepdim=True)).tanh()[:, 0]), K.OTHER),
    # weights and other masks
    (lambda s, h, m: s.fc((h * h.mean(1, keepdim=True)).sum(1)), K.OTHER),
    (lambda s, h, m: s.fc((h * column(m * (numbers(m) > 0))).sum(1)), K.WEIGHTED),
    (lambda s, h, m: s.fc(h.masked_fill(column(m * (numbers(m) > 0)) == 0, 0).sum(1)), K.OTHER),
    # features in two groups, and all features of all positions
    (lambda s, h, m: s.fc(h.view(len(h), -1, 2, H // 2).mean(1).flatten(1)), K.MEAN),
    (lambda s, h, m: s.fc(h.flatten(1)[:, :H]), K.FLATTEN),
    (lambda s, h, m: s.fc(h.reshape(1, -1)[:, :H]).expand(len(h), -1), K.OTHER),
    # rows that are joined
    (lambda s, h, m: s.fc(h.flatten(0, 1).mean(0)).expand(len(h), -1), K.OTHER),
    (lambda s, h, m: s.fc(h.flatten(0, 1).amax(0)).expand(len(h), -1), K.OTHER),
    (lambda s, h, m: s.fc(h.flatten(0, 1).sum(0)).expand(len(h), -1), K.OTHER),
    (lambda s, h, m: (s.fc.bias * h.flatten(0, 1).sum()).expand(len(h), -1), K.OTHER),
    # parts that come together
    (lambda s, h, m: s.fc((h[:, 0] + h[:, 1]) * h[:, 2]), K.CONCAT),
    (lambda s, h, m: s.fc(h[:, 0] * h[:, 0] - h[:, 1]), K.CONCAT),
    (lambda s, h, m: s.fc(torch.stack([h[:, 0], h[:, 0]]).mean(0)), K.FIRST_TOKEN),
    (lambda s, h, m: s.fc(torch.stack([h[:, 0], h[:, 1]]).mean(0)), K.CONCAT),
)  # fmt: skip


def _sources(table: str) -> list[str]:
    """The heads of a table in this file, as they are written."""
    tables = (item for item in ast.parse("\n".join(SOURCE)).body if isinstance(item, ast.Assign | ast.AnnAssign))
    [found] = [item.value for item in tables if table in (ast.unparse(part) for part in ast.iter_child_nodes(item))]
    heads = (next(part for part in ast.walk(item) if isinstance(part, ast.Lambda)) for item in found.elts)
    return [ast.unparse(head.body).removeprefix("s.fc(").removesuffix(")") for head in heads]
