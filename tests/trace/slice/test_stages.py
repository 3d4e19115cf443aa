"""Where the inputs of a stage come from: the stage that made each, or the hidden states."""

import torch

from headscope.core.facts.heads.head import HIDDEN_STATES
from headscope.core.source.request import ModuleRequest
from headscope.facts import Stage
from headscope.slices.inspect.live import inspect_module
from tests.trace.heads import EXAMPLES, H, Text


def branched(s: Text, h: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """A residual around `dense`, beside a maximum over the tokens, both read by `fc`."""
    one = h[:, 0]
    one = one + s.dense(one.to(one.dtype).contiguous())
    return s.fc(torch.cat([one, h.max(1).values], -1))


def stages() -> tuple[Stage, ...]:
    return inspect_module(Text(branched, 2 * H), ModuleRequest(example_inputs=EXAMPLES)).head.stages


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
