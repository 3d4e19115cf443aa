"""One forward: what it may fail with, what is lent to it, and a model that is afterwards as it was before."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2ForSequenceClassification, LlamaConfig, LlamaForSequenceClassification

import headscope
from headscope.errors import Unsupported
from headscope.facts import PoolingKind
from headscope.trace.observe import observe_inputs

EXAMPLES = {"x": torch.randn(2, 4, generator=torch.Generator().manual_seed(3))}


def gpt2(**changes: Any) -> GPT2ForSequenceClassification:
    """As people have it: no pad token."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "num_labels": 3}
    ends = {"bos_token_id": 98, "eos_token_id": 98}
    return GPT2ForSequenceClassification(GPT2Config(**(sizes | ends | changes)))


def llama() -> LlamaForSequenceClassification:
    return LlamaForSequenceClassification(LlamaConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=37, num_labels=3,
    ))  # fmt: skip


@pytest.mark.parametrize("build", [gpt2, llama])
def test_a_model_in_memory_without_a_pad_token_is_lent_one_for_the_run(build: Any) -> None:
    model = build()
    report = headscope.inspect(model)
    assert report.head is not None
    assert report.head.pooling.kind is PoolingKind.LAST_NON_PAD_TOKEN
    assert any("no pad token is set" in note for note in report.notes)
    assert model.config.pad_token_id is None


def test_a_pad_token_is_lent_to_a_model_inside_another() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = gpt2()

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.inner(input_ids, attention_mask=attention_mask).logits

    ids = torch.randint(3, 90, (2, 6))
    report = headscope.inspect(Wrapper(), example_inputs={"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert report.head is not None
    assert report.head.pooling.kind is PoolingKind.LAST_NON_PAD_TOKEN


def test_no_pad_token_is_lent_for_somebodys_own_inputs() -> None:
    ids = torch.randint(3, 90, (2, 6), generator=torch.Generator().manual_seed(1))
    with pytest.raises(Unsupported) as caught:
        observe_inputs(gpt2(), {"input_ids": ids})
    assert "padding token" in caught.value.message
    assert "set pad_token_id" in caught.value.hint
    one = observe_inputs(gpt2(), {"input_ids": ids[:1]})
    with torch.no_grad():
        expected = gpt2().eval()(input_ids=ids[:1]).logits
    assert one.logits is not None
    assert torch.equal(one.logits, expected)


class Ends(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


@pytest.mark.parametrize("error", [SystemExit(3), ValueError("not\nthis"), MemoryError(), RecursionError("deep")])
def test_whatever_a_forward_raises_is_one_sentence(error: BaseException) -> None:
    with pytest.raises(Unsupported) as caught:
        headscope.inspect(Ends(error), example_inputs=EXAMPLES)
    assert type(error).__name__ in caught.value.message
    assert "\n" not in caught.value.message


def test_an_interruption_passes() -> None:
    model = Ends(KeyboardInterrupt()).train()
    with pytest.raises(KeyboardInterrupt):
        headscope.inspect(model, example_inputs=EXAMPLES)
    assert model.fc.training


class Busy(nn.Module):
    """It changes all that a forward can change: buffers in place and by another tensor, counters, attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.fc = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("last", torch.zeros(4))
        self.plain = torch.zeros(2)
        self.count = 0

    def train(self, mode: bool = True) -> "Busy":
        super().train(mode)
        self.fc.weight.data += 1  # some merge their adapters here
        self.norm.train(True)
        return self

    def forward(self, x: Tensor) -> Tensor:
        self.norm.train(True)  # such as they are found: statistics are updated whatever the mode
        x = self.norm(x)
        self.calls += 1
        self.last = x.mean(0)
        self.plain.add_(1)
        self.count += 1
        self.seen = x
        return self.fc(nn.functional.dropout(x, 0.5))


def test_a_forward_leaves_nothing_behind() -> None:
    torch.manual_seed(0)
    model = Busy()
    nn.Module.train(model, True)
    model.fc.eval()
    values = {name: value.clone() for name, value in model.state_dict().items()}
    held = {name: id(value) for name, value in [*model.named_buffers(), *model.named_parameters()]}
    modes, attributes, random = [part.training for part in model.modules()], set(vars(model)), torch.get_rng_state()
    report = headscope.inspect(model, example_inputs=EXAMPLES)
    assert report.head is not None
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert {name: id(value) for name, value in [*model.named_buffers(), *model.named_parameters()]} == held
    assert [part.training for part in model.modules()] == modes
    assert (model.count, model.plain.tolist(), set(vars(model))) == (0, [0.0, 0.0], attributes)
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_what_a_configuration_says_is_put_back() -> None:
    model = gpt2(problem_type=None)
    before = model.config.to_dict()
    observe_inputs(model, {"input_ids": torch.ones(1, 5, dtype=torch.long), "labels": torch.tensor([1])})
    assert model.config.to_dict() == before


@dataclass
class Scores:
    logits: Tensor


@pytest.mark.parametrize(
    ("made", "found"),
    [(None, None), (torch.tensor(1.0), None), ("text", None), (Scores(torch.ones(2, 3)), 1), ((torch.ones(2, 3),), 1)],
)
def test_what_a_forward_returns_has_scores_or_is_refused(made: Any, found: int | None) -> None:
    from headscope.trace.outputs import read_outputs
    from headscope.trace.recorder import Graph

    if found:
        assert len(read_outputs(nn.Identity(), made, Graph()).scores) == found
        return
    with pytest.raises(Unsupported, match="returns no scores"):
        read_outputs(nn.Identity(), made, Graph())


def test_there_is_one_way_to_run_a_forward() -> None:
    folder = Path(headscope.__file__).parent
    found = subprocess.run(
        ["grep", "-rnE", r"\bmodel\(|\bmodule\(|recording\(|_run\(model[,)]", "--include=*.py", str(folder)],
        capture_output=True, text=True, check=False,
    ).stdout.splitlines()  # fmt: skip
    calls = {Path(line.partition(":")[0]).name for line in found if not re.search(r"def \w+\(", line)}
    assert calls == {"execution.py"}, found
