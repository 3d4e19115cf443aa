"""Where the inputs of a stage come from: the stage that made each, or the hidden states."""

import torch
from torch import nn

from headscope.core.facts.heads.head import HIDDEN_STATES
from headscope.core.source.request import ModuleRequest
from headscope.facts import Stage
from headscope.slices.inspect.live import inspect_module

IDS = torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0]])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.mix = nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.mix(self.embed(ids))


class Branched(nn.Module):
    """A residual around `dense`, beside a maximum over the tokens, both read by `score`."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.dense = nn.Linear(8, 8)
        self.score = nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(ids)
        first = hidden[:, 0]
        first = first + self.dense(first.to(first.dtype).contiguous())
        return self.score(torch.cat([first, hidden.max(1).values], -1))


def stages() -> tuple[Stage, ...]:
    head = inspect_module(Branched(), ModuleRequest(example_inputs={"ids": IDS})).head
    return head.stages


def test_each_input_names_the_stage_that_made_it() -> None:
    by_index = {stage.index: stage for stage in stages()}
    found = {
        stage.operation: [by_index[made].operation if made != HIDDEN_STATES else "hidden" for made in stage.inputs]
        for stage in by_index.values()
        if stage.operation != "linear"
    }
    assert found == {"select": ["hidden"], "max": ["hidden"], "add": ["select", "linear"], "cat": ["add", "max"]}


def test_the_inputs_stand_beside_their_shapes() -> None:
    by_index = {stage.index: stage for stage in stages()}
    for stage in by_index.values():
        made = [by_index[index].output_shape for index in stage.inputs if index != HIDDEN_STATES]
        assert len(stage.inputs) == len(stage.input_shapes)
        assert made == [
            shape for shape, index in zip(stage.input_shapes, stage.inputs, strict=True) if index != HIDDEN_STATES
        ]


def test_an_input_comes_from_an_earlier_stage() -> None:
    assert all(made < stage.index for stage in stages() for made in stage.inputs)


def test_the_maximum_says_whether_padding_is_in_it() -> None:
    head = inspect_module(Branched(), ModuleRequest(example_inputs={"ids": IDS})).head
    assert "padding included" in head.pooling.rule
