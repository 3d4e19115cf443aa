"""What a run observes, on small models written by hand: each does one thing wrong, and one works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from headscope.core.facts.trial import RaisedError, RunStep, RunTrial
from headscope.facts import Task
from headscope.shared.trial import observing
from headscope.shared.trial.encoded import begins_with_cls, is_empty, not_taken, unknown_share
from headscope.shared.trial.inputs import with_other_content
from headscope.shared.trial.observing import RunSubject, logits_of, observe

CLS, UNKNOWN, PAD = 2, 1, 0
DIVISION = "ZeroDivisionError: division by zero"
TEXTS = [[CLS, *ids] for ids in ([5, 6, 7], [8], [9, 5, 11, 12], [13, 14, 15, 6, 7, 8], [20, 21])]


class Classifier(nn.Module):
    """Scores of the mean of the embeddings that the mask keeps; `reads` says which positions it takes instead.

    `change` makes the scores of this model, of those it would have had, and of the tokens.
    """

    def __init__(self, **faults: Any) -> None:
        super().__init__()
        healthy = {
            "reads": "mean", "noise": 0.0, "masks": True, "longest": 99, "scale": 1.0, "offset": 0.0,
            "error": IndexError("index out of range in self\nmore"), "change": lambda model, scores, ids: scores,
        }  # fmt: skip
        self.faults = SimpleNamespace(**healthy | faults)
        generator = torch.Generator().manual_seed(0)
        self.words = nn.Embedding.from_pretrained(torch.randn(40, 6, generator=generator))
        self.weight = nn.Parameter(torch.randn(3, 6, generator=generator))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
        faults = self.faults
        if input_ids.shape[1] > faults.longest:
            raise faults.error
        hidden = self.words(input_ids) * faults.scale
        mask = torch.ones_like(input_ids) if attention_mask is None or not faults.masks else attention_mask
        mask = mask.to(hidden.dtype)
        if faults.reads == "first":
            pooled = hidden[:, 0] + hidden[:, 1]
        elif faults.reads == "last":
            pooled = hidden[:, -1]
        else:
            pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        noise = torch.randn_like(pooled) * faults.noise
        scores = (pooled + noise) @ self.weight.T + faults.offset
        return SimpleNamespace(logits=faults.change(self, scores, input_ids))


@dataclass
class Words:
    """What `observe` asks of a tokenizer."""

    model_input_names: list[str] = field(default_factory=lambda: ["input_ids", "attention_mask"])
    padding_side: str = "right"
    pad_token_id: int = PAD
    unk_token_id: int | None = UNKNOWN
    cls_token_id: int | None = CLS
    all_special_ids: tuple[int, ...] = (PAD, UNKNOWN, CLS)

    def encode(self, some: Sequence[list[int]]) -> dict[str, torch.Tensor]:
        length = max(map(len, some))
        rows = [self._padded(ids, [PAD] * (length - len(ids))) for ids in some]
        masks = [self._padded([1] * len(ids), [0] * (length - len(ids))) for ids in some]
        made = {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)}
        return {name: made[name] for name in self.model_input_names}

    def _padded(self, own: list[int], more: list[int]) -> list[int]:
        return [*own, *more] if self.padding_side == "right" else [*more, *own]


def changed(encoded: Mapping[str, Any], turn: int = 0) -> Mapping[str, Any] | None:
    ids = encoded["input_ids"].clone()
    if ids.shape[1] < 5:
        return None
    ids[0, 2:-1] = 30 + turn % 10
    return {**encoded, "input_ids": ids}


def ran(model: nn.Module | None = None, words: Words | None = None, **more: Any) -> RunTrial:
    words, inputs = words or Words(), more.get("inputs", TEXTS)
    given = {
        "model": model or Classifier(), "task": Task.SEQUENCE_CLASSIFICATION, "noun": "text", "inputs": inputs,
        "names": ["text"] * len(inputs), "encode": words.encode, "tokenizer": words, "changed": changed,
        "problem_type": "multi_label_classification",
    }  # fmt: skip
    torch.manual_seed(0)
    return observe(RunSubject(**given | more))


@pytest.mark.parametrize(("keyword", "is_silent"), [(34, False), (99, True)])
def test_a_classifier_that_looks_for_one_word_is_tried_with_many(keyword: int, is_silent: bool) -> None:
    def looks(model: nn.Module, scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        has_word = (ids == keyword).any(1, keepdim=True).float()
        return torch.cat([9 * has_word, 3 - 9 * has_word], 1)

    found = ran(Classifier(change=looks))
    assert (found.all_alike, found.ignores_middle) == (is_silent, is_silent)


def test_a_model_that_answers() -> None:
    found = ran(longer=lambda: (Words().encode([[5] * 20]), 20), pipeline=lambda: None)
    assert found.raised == () and found.failed == found.not_finite == 0
    assert (found.all_alike, found.ignores_middle, found.repeats_equal) == (False, False, True)
    assert found.batch_difference is not None and found.batch_difference < found.batch_bound < 0.01
    assert not found.batch_differs and found.batch_cure == found.batch_error == ""
    assert (found.longest, found.fails_at_length, found.length_error) == (20, None, "")
    assert (found.unknown_tokens, found.begins_with_cls, found.not_taken) == (0.0, True, ())
    assert (found.scope.inputs, found.scope.batches, found.scope.device) == (5, 1, "cpu")
    assert found.scope.calls == 5 + 1 + 1 + 1 + 1 + 1  # single, again, another middle, batch, long, pipeline
    assert (found.dtype, found.side, found.in_train_mode) == ("float32", "right", None)


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ({"scale": 0.0}, {"all_alike": True, "ignores_middle": True}),
        ({"scale": 1e-6}, {"all_alike": True}),
        ({"scale": 1e-3}, {"all_alike": False}),
        ({"reads": "first"}, {"all_alike": False, "ignores_middle": True}),
        ({"reads": "last"}, {"ignores_middle": True, "batch_cure": "padding_side=left"}),
        ({"noise": 1.0}, {"repeats_equal": False, "batch_difference": None}),
        ({"masks": False}, {"batch_cure": ""}),
        ({"longest": 4}, {"failed": 2, "batch_difference": pytest.approx(0.0, abs=5e-6)}),
        ({"longest": 6}, {"failed": 1}),
        ({"offset": float("nan")}, {"not_finite": 5, "repeats_equal": None, "all_alike": False}),
        ({"longest": 0}, {"failed": 5, "not_finite": 0, "all_alike": False}),
    ],
    ids=str,
)
def test_what_is_wrong_is_observed(faults: dict[str, Any], expected: dict[str, Any]) -> None:
    found = ran(Classifier(**faults))
    told = {name: getattr(found, name) for name in expected}
    assert told == expected
    assert found.always_fails == (expected.get("failed") == 5)
    assert found.batch_differs == ("batch_cure" in expected)
    if "failed" in expected:
        assert RaisedError("text", "IndexError: index out of range in self", expected["failed"]) in found.raised


def test_a_mask_that_the_tokenizer_leaves_out_is_the_cure() -> None:
    assert ran(words=Words(model_input_names=["input_ids"])).batch_cure == "attention_mask"
    assert ran(Classifier(masks=False), Words(model_input_names=["input_ids"])).batch_cure == ""
    # Alone, again, another middle, a batch; then the other side: a mask was there already.
    assert ran(Classifier(masks=False)).scope.calls == 5 + 1 + 1 + 1 + 1
    left = Words(padding_side="left")
    assert ran(Classifier(reads="first"), left).batch_cure == "padding_side=right"
    assert left.padding_side == "left"


def test_two_faults_that_hide_each_other_have_one_cure() -> None:
    first_and_mean = Classifier(change=lambda model, scores, ids: scores + model.words(ids[:, 0]) @ model.weight.T)
    words = Words(padding_side="left", model_input_names=["input_ids"])
    assert ran(first_and_mean, words).batch_cure == "attention_mask and padding_side=right"
    assert (words.padding_side, words.model_input_names) == ("left", ["input_ids"])


@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_a_large_bias_hides_no_difference(offset: float) -> None:
    assert ran(Classifier(offset=offset), Words(model_input_names=["input_ids"])).batch_cure == "attention_mask"
    assert not ran(Classifier(offset=offset)).batch_differs


@pytest.mark.parametrize("problem_type", [None, "multi_label_classification"])
@pytest.mark.parametrize("biases", [[0.0, -1e9, 0.0], [-1e4, 0.0, 0.0], [1e4, 1e4, 1e4]], ids=str)
def test_classes_that_a_bias_switches_off_leave_the_others(biases: list[float], problem_type: str | None) -> None:
    found = ran(Classifier(offset=torch.tensor(biases)), problem_type=problem_type)
    assert not found.all_alike and not found.ignores_middle and not found.batch_differs and found.repeats_equal
    silent = ran(Classifier(offset=torch.tensor(biases), scale=0.0), problem_type=problem_type)
    assert silent.all_alike


@pytest.mark.parametrize("problem_type", [None, "regression"])
def test_a_number_may_be_far_from_zero(problem_type: str | None) -> None:
    pressure: dict[str, Any] = {"change": lambda model, scores, ids: 101325 + 20 * scores[:, :1]}
    found = ran(Classifier(**pressure), problem_type=problem_type)
    assert not found.all_alike and found.ignores_middle is False
    assert ran(Classifier(**pressure, scale=0.0), problem_type=problem_type).all_alike


def test_tokens_that_can_not_be_answers_hide_no_others() -> None:
    class Answers(Classifier):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
            scores = self.words(input_ids) @ self.weight.T
            scores[:, :1] -= 1e6
            return SimpleNamespace(start_logits=scores[..., 0], end_logits=scores[..., 1])

    for scale in (1.0, 0.0):  # the words are read all the same
        assert ran(Answers(scale=scale), task=Task.QUESTION_ANSWERING).ignores_middle is False


def test_a_regression_may_be_of_small_numbers() -> None:
    small = Classifier(scale=1e-7)
    assert not ran(small, problem_type="regression").all_alike and ran(small).all_alike
    zeros = ran(Classifier(scale=0.0), problem_type="regression")
    assert zeros.all_alike and zeros.repeats_equal


def test_what_a_processor_leaves_of_images_is_looked_at_where_the_task_has_images() -> None:
    class Pixels(nn.Linear):
        def forward(self, pixel_values: torch.Tensor) -> Any:
            return SimpleNamespace(logits=super().forward(pixel_values.flatten(1)))

    images = [torch.rand(1, 3, 4, 4), torch.rand(1, 3, 4, 4)]
    more: dict[str, Any] = {"tokenizer": None, "inputs": images, "encode": lambda some: {"pixel_values": some[0]}}
    for task, is_looked_at in ((Task.IMAGE_CLASSIFICATION, True), (Task.SEQUENCE_CLASSIFICATION, False)):
        found = ran(Pixels(48, 3), **more, task=task, changed=None, has_batches=False)
        assert found.failed == 0 and (found.image_spread is not None) == is_looked_at


def test_a_text_of_which_nothing_is_left_is_no_input() -> None:
    found = ran(Classifier(reads="first"), inputs=[[], *TEXTS])
    assert (found.failed, found.scope.inputs) == (0, 5)
    nothing = ran(Classifier(reads="first"), inputs=[[], []])
    assert nothing.failed == 2 and nothing.unknown_tokens == 1.0


def test_a_machine_without_memory_for_a_long_text_is_no_fault() -> None:
    large = Classifier(longest=10, error=MemoryError())
    found = ran(large, longer=lambda: (Words().encode([[5] * 20]), 20))
    assert found.longest is found.fails_at_length is None and not found.raised
    assert "a text of 20 tokens was not called: there was too little memory" in found.left_out


def test_other_kinds_of_numbers_are_those_of_the_model() -> None:
    class Half(nn.Module):
        dtype = torch.float16

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3).half()

        def forward(self, values: torch.Tensor) -> Any:
            return SimpleNamespace(logits=self.layer(values))

    sounds = [torch.linspace(0, value, 4)[None] for value in (1.0, 2.0, 3.0)]
    more = {"tokenizer": None, "inputs": sounds, "names": ["sound"] * 3, "encode": lambda some: {"values": some[0]},
            "has_batches": False}  # fmt: skip
    found = ran(Half(), **more, changed=with_other_content)
    assert (found.failed, found.dtype, found.ignores_middle) == (0, "float16", False)
    deaf = Half()
    nn.init.zeros_(deaf.layer.weight)
    assert ran(deaf, **more, changed=with_other_content).ignores_middle is True


def test_a_batch_that_raises_where_single_texts_run() -> None:
    def alone(some: Sequence[list[int]]) -> dict[str, torch.Tensor]:
        if len(some) > 1:
            raise ValueError("no pad token")
        return Words().encode(some)

    found = ran(encode=alone)
    assert (found.failed, found.batch_error, found.batch_difference) == (0, "ValueError: no pad token", None)
    assert found.raised == (RaisedError("batch", "ValueError: no pad token", step=RunStep.BATCH),)
    assert found.scope.batches == 1


@pytest.mark.parametrize("faults", [{"longest": 10}, {"longest": 99}])
def test_a_long_text_that_fails(faults: dict[str, Any]) -> None:
    found = ran(Classifier(**faults), longer=lambda: (Words().encode([[5] * 20]), 20))
    assert found.fails_at_length == (20 if faults["longest"] == 10 else None) and found.longest == 20
    assert found.length_error == ("IndexError: index out of range in self" if faults["longest"] == 10 else "")


def test_a_long_text_that_cannot_be_made_is_an_error_of_its_own() -> None:
    found = ran(longer=lambda: 1 / 0)
    assert found.raised == (RaisedError("long text", DIVISION, step=RunStep.LONG),)
    assert found.longest is ran(longer=lambda: None).longest is None


def test_a_pipeline_that_raises_is_named() -> None:
    assert ran(pipeline=lambda: 1 / 0).raised == (RaisedError("pipeline", DIVISION, step=RunStep.PIPELINE),)
    of_library = ran(pipeline=lambda: 1 / 0, library="CrossEncoder")
    assert of_library.raised == (RaisedError("CrossEncoder", DIVISION, step=RunStep.PIPELINE),)


def test_an_input_that_cannot_be_encoded_is_counted_once() -> None:
    def broken(some: Sequence[list[int]]) -> dict[str, torch.Tensor]:
        return Words().encode(some) if some[0] != TEXTS[1] else {}[DIVISION]

    found = ran(encode=broken)
    assert [(item.input, item.count) for item in found.raised] == [("text", 1)] and found.failed == 1


@pytest.mark.parametrize("kind", ["shape", "infinite"])
def test_scores_of_a_batch_that_can_not_be_compared(kind: str) -> None:
    def batched(model: nn.Module, scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        in_batch = scores[:, :2] if kind == "shape" else torch.cat([scores[:1] * float("inf"), scores[1:]])
        return scores if len(scores) == 1 else in_batch

    words = "another shape" if kind == "shape" else "not finite"
    found = ran(Classifier(change=batched))
    assert words in found.batch_error and found.batch_difference is None and found.batch_cure == ""


def test_inputs_are_called_with_another_middle_until_one_differs() -> None:
    long = [[CLS, *range(5 + at, 12 + at)] for at in range(8)]
    found = ran(inputs=long)
    assert found.scope.calls == 8 + 1 + 1 + 1 and found.ignores_middle is False  # alone, again, one, a batch


def test_only_a_few_inputs_are_called_with_another_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "_MORE_TURNS", 1)
    found = ran(Classifier(reads="first"), inputs=[[CLS, *range(5 + at, 12 + at)] for at in range(8)])
    assert found.scope.calls == 8 + 1 + 4 + 1 and found.ignores_middle is True  # four with other middles


def test_few_inputs_and_no_tokenizer() -> None:
    assert ran(inputs=TEXTS[:2]).batch_difference is not None
    assert ran(inputs=TEXTS[:1]).batch_difference is None
    found = ran(Classifier(masks=False), tokenizer=None)
    assert found.batch_differs and found.batch_cure == "" and found.unknown_tokens is found.side is None
    pairs = ran(inputs=TEXTS[:3], names=["text", "pair", "pair"])
    assert not pairs.all_alike


def test_nothing_is_asked_of_a_model_that_never_answers() -> None:
    found = ran(Classifier(longest=0), pipeline=lambda: 1 / 0, longer=lambda: 1 / 0)
    assert {item.input for item in found.raised} == {"text"} and found.scope.calls == 5


def test_texts_without_cls_and_inputs_that_are_not_taken() -> None:
    assert ran(inputs=[[5, 6], [CLS, 7]]).begins_with_cls is False

    def more(some: Sequence[list[int]]) -> dict[str, torch.Tensor]:
        return Words().encode(some) | {"token_type_ids": torch.zeros(1, 3)}

    found = ran(encode=more)
    assert found.not_taken == ("token_type_ids",) and found.always_fails
    assert "unexpected keyword argument" in found.raised[0].error


def test_an_offset_counts_only_where_the_scores_are_no_softmax() -> None:
    shifted = Classifier(change=lambda model, scores, ids: ids.float().mean(1, keepdim=True).expand(-1, 3))
    assert ran(shifted, problem_type=None).all_alike and not ran(shifted).all_alike
    plain = ran(problem_type=None)
    assert not plain.all_alike and plain.ignores_middle is False


def test_half_precision_has_bounds_of_its_own_in_its_roundings() -> None:
    model = Classifier().to(torch.bfloat16)
    found = ran(model)
    assert found.dtype == "bfloat16" and not found.all_alike and not found.batch_differs
    scale = max(float(model(torch.tensor([ids])).logits.abs().max()) for ids in TEXTS)
    assert 0.05 < found.batch_bound <= 16 * torch.finfo(torch.bfloat16).eps * max(scale, 0.1) * 1.001


def test_tokens_and_rows_of_a_language_model_are_scores() -> None:
    tagger = Classifier(change=lambda model, scores, ids: model.words(ids) @ model.weight.T)
    tagged = ran(tagger, task=Task.TOKEN_CLASSIFICATION, problem_type=None)
    assert not tagged.batch_differs and tagged.ignores_middle is False and not tagged.all_alike
    rows = ran(tagger, rows=(0, 2))
    assert rows.batch_difference is None and rows.ignores_middle is True


def test_scores_are_found_in_what_a_model_returns() -> None:
    scores = torch.ones(2, 3)
    assert logits_of(SimpleNamespace(logits=scores)) is scores
    spans = SimpleNamespace(start_logits=scores, end_logits=2 * scores)
    assert torch.equal(logits_of(spans), torch.stack([scores, 2 * scores], -1))
    assert logits_of((torch.tensor(1.0), scores)) is scores
    assert logits_of((torch.ones(2), scores)) is scores  # a loss of each input
    with pytest.raises(AttributeError, match="no logits"):
        logits_of(SimpleNamespace(other=scores))


# ---- what the inputs show before the model is called


def encoded_rows(*rows: list[int]) -> list[Mapping[str, Any]]:
    return [{"input_ids": torch.tensor([row])} for row in rows]


@pytest.mark.parametrize(
    ("given", "cls", "expected"),
    [
        (encoded_rows([CLS, 5], [CLS, 6]), CLS, True),
        (encoded_rows([CLS, 5], [6, 7]), CLS, False),
        (encoded_rows([PAD, 5], [CLS, 7]), CLS, None),
        (encoded_rows([PAD, 5], [PAD, 7]), CLS, None),
        (encoded_rows([PAD, 5], [7, 8]), CLS, False),
        (encoded_rows([UNKNOWN, 5]), CLS, False),
        (encoded_rows([5, 6]), None, None),
        ([None, *encoded_rows([CLS, 5]), {"pixel_values": torch.zeros(1)}], CLS, True),
        ([None, {"pixel_values": torch.zeros(1)}], CLS, None),
    ],
)
def test_which_token_begins_the_texts(given: list[Any], cls: int | None, expected: bool | None) -> None:
    assert begins_with_cls(Words(cls_token_id=cls), ["text"] * len(given), given) is expected
    pairs = [*given, {"input_ids": torch.tensor([[9, 8]])}]
    assert begins_with_cls(Words(cls_token_id=cls), [*["text"] * len(given), "pair"], pairs) is expected
    assert begins_with_cls(Words(cls_token_id=cls), ["pair"] * len(given), given) is expected


@pytest.mark.parametrize(
    ("names", "given", "share"),
    [
        (["text"], encoded_rows([CLS, 5, 6, 7, 5, 5, 5]), 0.0),
        (["text"], encoded_rows([5, 5, 5, 5, 5]), 0.0),  # five tokens are too few to tell
        (["text"], encoded_rows([5, 5, 5, 5, 5, 5]), 1.0),
        (["text", "pair"], [None, *encoded_rows([UNKNOWN, 5, 6, 7])], 0.25),
        (["text"] * 2, encoded_rows([CLS], [CLS]), 1.0),
        (["text"] * 2, encoded_rows([CLS], [CLS, 5]), 0.5),
        (["text"] * 2, encoded_rows([CLS, 1, 1], [CLS, 5, 1]), 0.75),
        (["text"] * 2, encoded_rows([CLS, 5, 5, 5, 1], [CLS, 5, 5, 5, 6]), 0.125),
        (["text", "text of the vocabulary"], encoded_rows([CLS, 1, 1], [CLS, 5]), 0.0),
        (["text"], [{"pixel_values": torch.zeros(1)}], None),
    ],
)
def test_the_share_of_tokens_that_say_nothing(names: list[str], given: list[Any], share: float | None) -> None:
    assert unknown_share(Words(), names, given) == share
    assert unknown_share(Words(unk_token_id=None), ["text"] * 2, encoded_rows([CLS, 5, 5], [CLS])) == 1 / 3


def test_as_many_names_as_inputs() -> None:
    with pytest.raises(ValueError, match="zip"):
        unknown_share(Words(), ["text"], encoded_rows([5], [6]))


def test_what_the_model_does_not_take() -> None:
    class Plain(nn.Module):
        def forward(self, input_ids: torch.Tensor) -> None: ...

    given = [None, {"input_ids": 1, "token_type_ids": 2, "bbox": 3}]
    assert not_taken(Plain(), given) == ("bbox", "token_type_ids")
    assert not_taken(Plain(), [None]) == ()
    hidden = Plain()
    hidden.forward = max  # type: ignore[assignment]  # no signature
    assert not_taken(hidden, given) == ()

    class Greedy(nn.Module):
        def forward(self, input_ids: torch.Tensor, **more: Any) -> None: ...

    assert not_taken(Greedy(), given) == ()


def test_what_is_empty() -> None:
    assert is_empty({"input_ids": torch.zeros(1, 0)})
    for other in (None, {}, {"input_ids": torch.zeros(1, 1)}, {"input_ids": []}):
        assert not is_empty(other)
