"""Small modules made by hand: an encoder that a reader takes in at a glance, and a head of a few lines on top of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headscope.core.trace.batch.examples import probe_from_examples
from headscope.core.trace.head import read_head
from headscope.core.trace.record.base import base_module
from headscope.core.trace.record.execution import Execution, run_forward
from headscope.core.trace.replay.picks import TokenNames
from headscope.core.trace.slice.axes import TokenAxes, find_token_axes
from headscope.core.trace.slice.head_slice import HeadSlice, locate_head
from headscope.facts import HeadTrace, Pooling, PoolingKind, PoolingPart, Positions, Where
from tests.families import FAMILIES

H, LABELS, LAYERS = 8, 3, 4
IDS = {"ids": torch.arange(3, 15).reshape(2, 6)}
EXAMPLES = IDS | {"attention_mask": torch.ones(2, 6, dtype=torch.long)}
PAIRS = IDS | {"other": IDS["ids"] + 1}
Head = Callable[["Text", Tensor, Tensor], Tensor]
"""What a head computes from the hidden states, [batch, sequence, H], and the mask, [batch, sequence]."""

FIRST, LAST = Positions(Where.INDEX, 0), Positions(Where.INDEX, -1)
ALL, NON_PAD, EACH = Positions(Where.ALL), Positions(Where.NON_PAD), Positions(Where.EACH)
BY_ROW, LAST_NON_PAD = Positions(Where.BY_ROW), Positions(Where.LAST_NON_PAD)


def at(index: int) -> Positions:
    return Positions(Where.INDEX, index)


def run_of(start: int, stop: int | None = None) -> Positions:
    return Positions(Where.RANGE, start, stop)


def last_real(mask: Tensor) -> Tensor:
    """The last position of each row that its mask keeps."""
    return (mask * torch.arange(mask.shape[1])).argmax(1)


def rows(mask: Tensor) -> Tensor:
    return torch.arange(mask.shape[0])


def column(mask: Tensor) -> Tensor:
    return mask.unsqueeze(-1)


def masked_mean(hidden: Tensor, kept: Tensor) -> Tensor:
    return (hidden * column(kept)).sum(1) / kept.sum(1, keepdim=True)


first: Head = lambda s, h, m: s.fc(h[:, 0])  # noqa: E731 - a table of heads
mean: Head = lambda s, h, m: s.fc(h.mean(1))  # noqa: E731


class Encoder(nn.Module):
    """Hidden states in which each position depends on its own token alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # the same weights whatever ran before
        self.embed = nn.Embedding(40, H)
        self.mix = nn.Linear(H, H)

    def forward(self, ids: Tensor) -> Tensor:
        return self.mix(self.embed(ids))


def bert(**changes: Any) -> PreTrainedModel:
    """An encoder of Transformers, as wide as the one above."""
    sizes = {"hidden_size": H, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    return FAMILIES["bert"].build("BertModel", **(sizes | changes))


class Made(nn.Module):
    """Layers under their names, and what a function makes of them and of the inputs."""

    def __init__(self, use: Callable[..., Any], **layers: Any) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.use = use

    def forward(self, **inputs: Tensor) -> Any:
        return self.use(self, **inputs)


class Text(nn.Module):
    """An encoder, a head given as a function, and whatever layers the heads of the tests want."""

    def __init__(self, head: Head, width: int = H) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = Encoder()
        self.fc = nn.Linear(width, LABELS)
        self.dense = nn.Linear(H, H)
        self.attention = nn.Linear(H, 1)
        self.lstm = nn.LSTM(H, H, batch_first=True)
        self.conv = nn.Conv1d(H, H, 3, padding=1)
        self.norm = nn.LayerNorm(H)
        self.query = nn.Parameter(torch.randn(1, 1, H))
        self.scale = nn.Parameter(torch.tensor(2.5))
        self.head = head

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self, self.encoder(ids), attention_mask)


class Layers(nn.Module):
    """An encoder that returns all its layers, as Transformers' base models do with `output_hidden_states`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, H)
        self.layers = nn.ModuleList(nn.Linear(H, H) for _ in range(LAYERS))

    def forward(self, ids: Tensor) -> dict[str, Any]:
        states = [self.embed(ids)]
        for layer in self.layers:
            states.append(layer(states[-1]).tanh())
        return {"last_hidden_state": states[-1], "hidden_states": tuple(states)}


def deep(head: Callable[[Any, tuple[Tensor, ...], Tensor], Tensor], width: int = H) -> Made:
    """A head on several layers of one encoder."""
    torch.manual_seed(0)
    return Made(
        lambda s, ids, attention_mask: head(s, s.encoder(ids)["hidden_states"], attention_mask),
        encoder=Layers(), fc=nn.Linear(width, LABELS), weights=nn.Parameter(torch.randn(LAYERS + 1)),
    )  # fmt: skip


def towers(head: Callable[[Any, Tensor, Tensor], Tensor], width: int = H) -> Made:
    """Two texts through one encoder."""
    torch.manual_seed(0)
    return Made(
        lambda s, ids, other: head(s, s.encoder(ids), s.encoder(other)), encoder=Encoder(), fc=nn.Linear(width, LABELS)
    )


class Patches(nn.Module):
    """Patches of 4 by 4 pixels, as a map of features or as a row of tokens."""

    def __init__(self, *, as_tokens: bool) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, H, 4, stride=4)
        self.layers = nn.Sequential(nn.Conv2d(H, H, 1), nn.ReLU())
        self.as_tokens = as_tokens

    def forward(self, pixels: Tensor) -> Tensor:
        found = self.layers(self.project(pixels))
        return found.flatten(2).transpose(1, 2) if self.as_tokens else found


def image(head: Callable[[Any, Tensor], Tensor], *, as_tokens: bool = True, width: int = H) -> Made:
    """A head on patches: [batch, patches, features] as tokens, [batch, features, rows, columns] as a map."""
    torch.manual_seed(0)
    return Made(
        lambda s, pixels: head(s, s.encoder(pixels)), encoder=Patches(as_tokens=as_tokens),
        pool=nn.AdaptiveAvgPool2d(1), largest=nn.AdaptiveMaxPool2d(1), fc=nn.Linear(width, LABELS),
    )  # fmt: skip


def of_frames(lengths: tuple[int, ...], gap: slice = slice(0)) -> Made:
    """Frames of which each row keeps as many as `lengths` says in turn, but the first of them in the rows of `gap`."""

    def scores(s: Any, frames: Tensor) -> Tensor:
        hidden = s.encoder(frames)
        count, length = hidden.shape[:2]
        mask = torch.arange(length)[None] < torch.tensor([[lengths[row % len(lengths)]] for row in range(count)])
        mask[gap, 0] = False
        return s.fc(masked_mean(hidden, mask.to(hidden.dtype)))

    return Made(scores, encoder=nn.Sequential(nn.Linear(H, H), nn.ReLU()), fc=nn.Linear(H, LABELS))


def pixels(rows: int, columns: int) -> dict[str, Tensor]:
    """Images of that many patches."""
    return {"pixels": torch.randn(2, 3, 4 * rows, 4 * columns)}


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded forward of a module, with the slice and the axes that were found in it."""

    head: HeadSlice
    axes: TokenAxes

    @property
    def execution(self) -> Execution:
        """The record that the head is from."""
        return self.head.execution


def run(module: nn.Module, examples: Mapping[str, Any] = EXAMPLES) -> Run:
    """The module run once on a probe made from its examples."""
    module.eval()
    execution = run_forward(module, probe_from_examples(module, examples), hint="")
    head = locate_head(execution, base_module(module))
    return Run(head, find_token_axes(head))


def on_meta(module: nn.Module) -> Run:
    """The same of a module without values."""
    return run(module.to("meta"))


def trace(module: nn.Module, examples: Mapping[str, Any] = EXAMPLES, names: TokenNames | None = None) -> HeadTrace:
    """What one run tells about a head, with the proof by gradients."""
    module.eval()

    def run_again(subject: nn.Module, turn: int, taken: frozenset[int]) -> Execution:
        return run_forward(subject, probe_from_examples(subject, examples, taken, turn), hint="")

    return read_head(module, run_again, names or TokenNames(), prove=True).trace


def pooling(*parts: tuple[PoolingKind, Positions]) -> Pooling:
    """A pooling made by hand, of a kind and positions for each part."""
    kind = parts[0][0] if len(parts) == 1 else PoolingKind.CONCAT
    made = tuple(PoolingPart(kind, positions, "rule") for kind, positions in parts)
    return Pooling(kind, ("t",), "rule", (), made)


def without_first(mask: Tensor) -> Tensor:
    """The mask without the first position of each row."""
    kept = mask.clone()
    kept[:, 0] = 0
    return kept.unsqueeze(-1)
