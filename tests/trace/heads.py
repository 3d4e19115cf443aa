"""Small modules made by hand: an encoder that a reader takes in at a glance, and a head of a few lines on top of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscope.core.trace.batch.examples import probe_from_examples
from headscope.core.trace.head import read_head
from headscope.core.trace.record.base import base_module
from headscope.core.trace.record.execution import Execution, run_forward
from headscope.core.trace.replay.picks import TokenNames
from headscope.core.trace.slice.axes import TokenAxes, find_token_axes
from headscope.core.trace.slice.head_slice import HeadSlice, locate_head
from headscope.facts import HeadTrace, Positions, Where

H, LABELS, LAYERS = 8, 3, 4
EXAMPLES = {"ids": torch.arange(3, 15).reshape(2, 6), "attention_mask": torch.ones(2, 6, dtype=torch.long)}
Head = Callable[["Text", Tensor, Tensor], Tensor]
"""What a head computes from the hidden states, [batch, sequence, H], and the mask, [batch, sequence]."""

FIRST, LAST = Positions(Where.INDEX, 0), Positions(Where.INDEX, -1)
ALL, NON_PAD, EACH = Positions(Where.ALL), Positions(Where.NON_PAD), Positions(Where.EACH)
BY_ROW, LAST_NON_PAD = Positions(Where.BY_ROW), Positions(Where.LAST_NON_PAD)


class Encoder(nn.Module):
    """Hidden states in which each position depends on its own token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, H)
        self.mix = nn.Linear(H, H)

    def forward(self, ids: Tensor) -> Tensor:
        return self.mix(self.embed(ids))


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


class Deep(nn.Module):
    """A head on several layers of one encoder."""

    def __init__(self, head: Callable[[Deep, tuple[Tensor, ...], Tensor], Tensor], width: int = H) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = Layers()
        self.fc = nn.Linear(width, LABELS)
        self.weights = nn.Parameter(torch.randn(LAYERS + 1))
        self.head = head

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self, self.encoder(ids)["hidden_states"], attention_mask)


class Towers(nn.Module):
    """Two texts through one encoder."""

    def __init__(self, head: Callable[[Towers, Tensor, Tensor], Tensor], width: int = H) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = Encoder()
        self.fc = nn.Linear(width, LABELS)
        self.head = head

    def forward(self, ids: Tensor, other: Tensor) -> Tensor:
        return self.head(self, self.encoder(ids), self.encoder(other))


class Patches(nn.Module):
    """Patches of 4 by 4 pixels, as a map of features or as a row of tokens."""

    def __init__(self, features: int, *, as_tokens: bool) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, features, 4, stride=4)
        self.layers = nn.Sequential(nn.Conv2d(features, features, 1), nn.ReLU())
        self.as_tokens = as_tokens

    def forward(self, pixels: Tensor) -> Tensor:
        found = self.layers(self.project(pixels))
        return found.flatten(2).transpose(1, 2) if self.as_tokens else found


class Image(nn.Module):
    """A head on patches: [batch, patches, features] as tokens, [batch, features, rows, columns] as a map."""

    def __init__(
        self, head: Callable[[Image, Tensor], Tensor], features: int = H, *, as_tokens: bool = True, width: int = 0
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = Patches(features, as_tokens=as_tokens)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.largest = nn.AdaptiveMaxPool2d(1)
        self.fc = nn.Linear(width or features, LABELS)
        self.head = head

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self, self.encoder(pixels))


def pixels(rows: int, columns: int) -> dict[str, Tensor]:
    """Images of that many patches."""
    return {"pixels": torch.randn(2, 3, 4 * rows, 4 * columns)}


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded forward of a module, with the slice and the axes that were found in it."""

    execution: Execution
    head: HeadSlice
    axes: TokenAxes


def run(module: nn.Module, examples: Mapping[str, Any] = EXAMPLES) -> Run:
    """The module run once on a probe made from its examples."""
    module.eval()
    execution = run_forward(module, probe_from_examples(module, examples), hint="")
    head = locate_head(execution, base_module(module))
    return Run(execution, head, find_token_axes(execution, head))


def trace(module: nn.Module, examples: Mapping[str, Any] = EXAMPLES, names: TokenNames | None = None) -> HeadTrace:
    """What one run tells about a head, with the proof by gradients."""
    module.eval()

    def run_again(subject: nn.Module, turn: int, taken: frozenset[int]) -> Execution:
        return run_forward(subject, probe_from_examples(subject, examples, taken, turn), hint="")

    return read_head(module, run_again, names or TokenNames(), prove=True).trace


def without_first(mask: Tensor) -> Tensor:
    """The mask without the first position of each row."""
    kept = mask.clone()
    kept[:, 0] = 0
    return kept.unsqueeze(-1)
