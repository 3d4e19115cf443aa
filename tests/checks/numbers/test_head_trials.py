"""What a head does with given numbers, held against the same layers written out in PyTorch."""

import gc
from dataclasses import replace
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import headscope
from headscope.core.facts.stored.location import Location
from headscope.core.facts.trial import HeadTrial
from headscope.core.source.checkpoint import examine
from headscope.core.source.request import Request
from headscope.core.trace import HeadProgram
from headscope.errors import Unsupported
from headscope.facts import Task
from headscope.shared.trial.head_trial import try_head
from tests.checks.broken import Change, put
from tests.edits import State
from tests.families import FAMILIES

SIZE, CLASSES = 32, 3


def recorded_of(model: Any, **request: Any) -> HeadProgram:
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        found = examine("check", Request(Location(folder), **request), None).program
    assert found is not None
    return found


@cache
def program(name: str, dtype: torch.dtype = torch.float32, **config: Any) -> HeadProgram:
    """The head of a BERT, recorded once."""
    return recorded_of(FAMILIES["bert"].build(name, **({"num_labels": CLASSES} | config)).to(dtype))


def texts() -> HeadProgram:
    return program("BertForSequenceClassification")


def numbers(**changes: Change) -> State:
    """The pooler and the classifier, grown to scores of ordinary size; keys are those of the classes of a BERT."""
    torch.manual_seed(1)
    given = {
        "bert.pooler.dense.weight": torch.randn(SIZE, SIZE) / 4, "bert.pooler.dense.bias": torch.randn(SIZE) / 10,
        "classifier.weight": torch.randn(CLASSES, SIZE), "classifier.bias": torch.randn(CLASSES),
    }  # fmt: skip
    for name, change in changes.items():
        key = {"dense": "bert.pooler.dense.weight", "shift": "bert.pooler.dense.bias"}.get(name, f"classifier.{name}")
        given[key] = change(given[key].clone())
    return given


def tried(given: State, problem_type: str | None = None) -> HeadTrial:
    return try_head(texts(), given, Task.SEQUENCE_CLASSIFICATION, problem_type)


def test_a_recorded_head_gives_the_scores_of_its_layers() -> None:
    given = numbers()
    hidden = tuple(torch.randn(item.shape) for item in texts().head.hidden)
    for exact in (False, True):
        found = texts().run(given, hidden, exact=exact)
        first = hidden[0][:, 0].double() if found.logits[0].dtype is torch.float64 else hidden[0][:, 0]
        dense, bias, weight, shift = (value.to(first.dtype) for value in given.values())
        expected = torch.tanh(first @ dense.T + bias) @ weight.T + shift
        assert torch.allclose(found.logits[0], expected, atol=1e-5)
    assert texts().tensors.keys() == given.keys()
    beside = texts().run(given | {"lm_head.weight": torch.zeros(1)}, hidden).logits[0]
    assert beside.dtype is torch.float32
    assert torch.allclose(beside, expected.float(), atol=1e-5)
    with pytest.raises(ValueError, match="zip"):
        texts().run(given, [])


def test_a_head_is_run_in_single_precision_unless_its_own_is_asked_for() -> None:
    halved = program("BertForSequenceClassification", torch.bfloat16)
    given = {name: value.bfloat16() for name, value in numbers().items()}
    hidden = [torch.randn(item.shape) for item in halved.head.hidden]
    assert halved.run(given, hidden).logits[0].dtype is torch.float32
    assert halved.run(given, hidden, exact=True).logits[0].dtype is torch.bfloat16


def test_what_is_kept_of_a_head_lets_its_model_go() -> None:
    recorded = program("BertForSequenceClassification", intermediate_size=61)
    gc.collect()
    assert recorded.tensors
    assert not [item for item in gc.get_objects() if isinstance(item, torch.Tensor) and 61 in item.shape]


def test_a_head_whose_recording_cannot_be_trusted_is_not_run() -> None:
    doubtful = replace(texts(), why_not="it reads a file")
    with pytest.raises(Unsupported, match="reads a file"):
        doubtful.run(numbers(), doubtful.head.hidden)
    assert try_head(doubtful, numbers(), Task.SEQUENCE_CLASSIFICATION, None) == HeadTrial(why_not="it reads a file")


ANSWERS = HeadTrial()
CASES: dict[str, tuple[State, HeadTrial]] = {
    "healthy": (numbers(), ANSWERS),
    "NaN": (numbers(weight=put(2, float("nan"))), HeadTrial(finite=False)),
    "infinite": (numbers(bias=put(0, float("inf"))), HeadTrial(finite=False)),
    "nearly infinite": (numbers(weight=lambda weight: weight * 1e31), HeadTrial(finite=False)),
    "large": (numbers(weight=lambda weight: weight * 1e25), ANSWERS),
    "overflows": (numbers(weight=lambda weight: weight.sign() * 3e38), HeadTrial(finite=False)),
    "zeros": (numbers(weight=torch.zeros_like), HeadTrial(moves=False)),
    "equal rows": (numbers(weight=lambda weight: weight[:1].expand_as(weight)), HeadTrial(moves=False)),
    "zeros before": (numbers(dense=torch.zeros_like), HeadTrial(moves=False)),
    "tiny": (numbers(weight=lambda weight: weight * 1e-7), HeadTrial(moves=False)),
    "tiny without a bias": (
        numbers(weight=lambda weight: weight * 1e-7, bias=torch.zeros_like), HeadTrial(moves=False)
    ),
    "small": (numbers(weight=lambda weight: weight * 1e-3, bias=torch.zeros_like), ANSWERS),
    "small layers": (
        numbers(
            weight=lambda weight: weight * 1e-4, dense=lambda dense: dense * 1e-4, bias=torch.zeros_like,
            shift=torch.zeros_like,
        ), ANSWERS,
    ),
    "one class of zeros": (numbers(weight=put(1, 0.0)), HeadTrial(stuck=(1,))),
    "one bias wins": (numbers(bias=put(1, 1e4)), HeadTrial(winner=1, bias=1e4, ahead=pytest.approx(1e4, rel=1e-3))),
    "one bias nearly wins": (numbers(bias=put(1, 30.0)), ANSWERS),
    "one bias never wins": (numbers(bias=put(1, -1e4)), ANSWERS),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_trial_says_what_the_numbers_of_a_head_can_answer(name: str) -> None:
    given, expected = CASES[name]
    assert tried(given) == expected


def test_a_nearly_winning_bias_is_beaten_by_an_input_that_no_random_one_comes_near() -> None:
    given = CASES["one bias nearly wins"][0]
    dense, bias, weight, shift = given.values()
    drawn = torch.randn(10_000, SIZE, generator=torch.Generator().manual_seed(0))
    for size in (1, 30):
        random = torch.tanh(size * drawn @ dense.T + bias) @ weight.T + shift
        assert set(random.argmax(1).tolist()) == {1}
    best = torch.tanh(torch.linalg.solve(dense, (weight[0] - weight[1]).sign() * 9 - bias) @ dense.T + bias)
    assert int((best @ weight.T + shift).argmax()) != 1


def test_a_rival_that_trails_by_a_constant_does_not_hide_one_that_can_win() -> None:
    given = numbers(bias=lambda _: torch.tensor([30.0, 29.0, 0.0]))
    dense, _, weight, _ = given.values()
    given["classifier.weight"] = torch.stack([weight[0], weight[0], -weight[0]])
    given["bert.pooler.dense.bias"] = torch.zeros(SIZE)
    best = torch.tanh(torch.linalg.solve(dense, weight[0].sign() * -4) @ dense.T)
    assert int((best @ given["classifier.weight"].T + given["classifier.bias"]).argmax()) == 2
    assert tried(given) == ANSWERS


def test_scores_that_only_the_dtype_of_the_head_can_not_hold_are_not_finite() -> None:
    halved = program("BertForSequenceClassification", torch.float16)
    given = numbers(weight=lambda weight: weight.clamp(-2, 2) * 30_000)
    assert tried(given) == ANSWERS
    given = {name: value.half() for name, value in given.items()}
    assert all(bool(value.isfinite().all()) for value in given.values())
    assert try_head(halved, given, Task.SEQUENCE_CLASSIFICATION, None) == HeadTrial(finite=False)


def test_numbers_that_the_head_does_not_read_change_nothing() -> None:
    assert tried(numbers() | {"bert.embeddings.weight": torch.full((2, 2), float("nan"))}) == ANSWERS


def test_a_class_wins_only_where_the_highest_score_is_the_answer() -> None:
    given = CASES["one bias wins"][0]
    assert tried(given, "multi_label_classification") == ANSWERS
    assert (
        tried({name: value for name, value in given.items() if "dense" not in name}) == ANSWERS
    )  # made up: no verdict


def test_numbers_that_the_layers_cannot_take_fail() -> None:
    found = tried(numbers(weight=lambda weight: weight.to(torch.int64)))
    assert found.fails
    assert found == HeadTrial(fails=found.fails)


@pytest.mark.parametrize("bias", [0.0, 1e4])
def test_choices_are_compared_with_each_other(bias: float) -> None:
    given = {name: value[:1] if name.startswith("classifier") else value for name, value in numbers().items()}
    choices = program("BertForMultipleChoice")
    given["classifier.bias"] = torch.full((1,), bias)
    assert try_head(choices, given, Task.MULTIPLE_CHOICE, None) == ANSWERS
    given["classifier.weight"] = torch.zeros(1, SIZE)
    assert try_head(choices, given, Task.MULTIPLE_CHOICE, None) == HeadTrial(moves=False)


@pytest.mark.parametrize(
    ("name", "task", "layer", "wins"),
    [("BertForTokenClassification", Task.TOKEN_CLASSIFICATION, "classifier", True),
     ("BertForQuestionAnswering", Task.QUESTION_ANSWERING, "qa_outputs", False)],
)  # fmt: skip
def test_every_token_is_an_input(name: str, task: Task, layer: str, wins: bool) -> None:
    recorded, always = program(name, num_labels=2), HeadTrial(winner=0, bias=1e4, ahead=1e4)
    weight, bias = torch.randn(2, SIZE, generator=torch.Generator().manual_seed(0)), torch.zeros(2)
    for numbers, shift, expected in (
        (weight, bias, ANSWERS), (weight, torch.tensor([1e4, 0]), always if wins else ANSWERS),
        (torch.stack([weight[0], torch.zeros(SIZE)]), bias, HeadTrial(stuck=(1,))),
        (torch.stack([weight[0], -weight[0]]), torch.tensor([1300.0, 0]), ANSWERS),
        (torch.zeros(2, SIZE), bias, HeadTrial(moves=False)), (weight * float("nan"), bias, HeadTrial(finite=False)),
    ):  # fmt: skip
        given = {f"{layer}.weight": numbers, f"{layer}.bias": shift}
        assert try_head(recorded, given, task, None) == expected


@pytest.mark.parametrize("name", ["Llama", "Phi"])
def test_rows_of_a_few_tokens_stand_at_the_end_of_the_vocabulary(name: str) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**FAMILIES["llama"].config | {"vocab_size": 300})
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    shift = {} if model.lm_head.bias is None else {"lm_head.bias": torch.zeros(2)}
    recorded = recorded_of(model, tokens=("id:5", "id:9"))
    rows = torch.randn(2, SIZE)
    for number, expected in ((0.0, HeadTrial(stuck=(1,))), (float("nan"), HeadTrial(finite=False))):
        assert try_head(recorded, shift | {"lm_head.weight": torch.cat([rows[:1], torch.full((1, SIZE), number)])},
                        Task.SEQUENCE_CLASSIFICATION, None) == expected  # fmt: skip
    assert try_head(recorded, shift | {"lm_head.weight": rows}, Task.SEQUENCE_CLASSIFICATION, None) == ANSWERS


class Ordered(nn.Module):
    """Scores that a buffer of whole numbers puts in order, and one number scales."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.score = nn.Embedding(60, SIZE), nn.Linear(SIZE, CLASSES)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("order", torch.tensor([2, 0, 1]))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.score(self.embed(input_ids)[:, 0])
        return scores[:, self.order] * self.scale


class Uneven(Ordered):
    """Two tensors of scores, for different numbers of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(SIZE, CLASSES + 2)

    def forward(self, input_ids: torch.Tensor) -> Any:
        first = self.embed(input_ids)[:, 0]
        return {"start_logits": self.score(first), "end_logits": self.other(first)}


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", [Ordered, Uneven])
def test_the_head_of_a_module_that_no_library_has_is_judged(kind: type[Ordered], zeros: bool) -> None:
    model = kind()
    if zeros:
        nn.init.zeros_(model.score.weight)
    found = headscope.check(model, select="HS501", example_inputs={"input_ids": torch.ones(2, 7, dtype=torch.int)})
    assert [item.id for item in found.findings] == ["HS501"] * zeros
    assert not found.not_determined


class Constant(Ordered):
    """Scores that no numbers of its layers can move."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids).clamp(5, 5)


def test_a_head_that_is_constant_with_any_numbers_is_not_judged_by_them() -> None:
    found = headscope.check(Constant(), select="HS501", example_inputs={"input_ids": torch.ones(2, 7, dtype=torch.int)})
    assert (found.verdict, [item.id for item in found.findings]) == ("not_determined", [])
    assert "HS501" in {gap.rule for gap in found.not_determined}


def test_the_random_numbers_that_a_head_is_compared_with_have_variances_above_zero() -> None:
    torch.manual_seed(0)
    config = transformers.LevitConfig(
        image_size=64, hidden_sizes=[16] * 3, num_attention_heads=[2] * 3, depths=[1] * 3, key_dim=[8] * 3
    )
    model = transformers.LevitForImageClassification(config)
    recorded = recorded_of(model)
    given = {name: value for name, value in model.state_dict().items() if name in recorded.tensors}
    for factor, expected in ((1.0, ANSWERS), (0.0, HeadTrial(moves=False))):
        changed = given | {"classifier.linear.weight": given["classifier.linear.weight"] * factor}
        assert try_head(recorded, changed, Task.IMAGE_CLASSIFICATION, None) == expected
