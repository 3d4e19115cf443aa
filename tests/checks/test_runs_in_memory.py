"""The run of a model in memory, and the process in which a stored one runs: inputs, reasons, ends, comparisons."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch
from torch import nn

from headscope.checks import trial_process
from headscope.checks.trial_process import TrialProcess, beside_fresh_load
from headscope.core.facts.stored.location import HubOptions, Location
from headscope.core.facts.trial import RunScope, RunTrial
from headscope.core.source.checkpoint import examine
from headscope.core.source.live.module import unwrap
from headscope.core.source.request import Request
from headscope.core.workers import WorkerEnded
from headscope.errors import Unsupported, UsageError
from headscope.facts import Task
from headscope.shared.loaded import scores
from headscope.shared.loaded.facts import ScoreComparison
from headscope.shared.loaded.scores import ScoredModel, compared_scores, score_checkpoint, scored
from headscope.shared.trial import deciding, live_trial
from tests.families import FAMILIES
from tests.verdicts.models import trained

TASK = Task.SEQUENCE_CLASSIFICATION


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(deciding.OFF, raising=False)


def bert(**config: Any) -> Any:
    return FAMILIES["bert"].build("BertForSequenceClassification", num_labels=3, initializer_range=0.3, **config)


def live(module: Any, task: Task = TASK, **fields: Any) -> Any:
    return SimpleNamespace(unwrapped=replace(unwrap(module), **fields), task=task)


# ---- a model in memory


def test_a_model_is_called_sixteen_times_in_eval_mode_and_left_as_it_was() -> None:
    model = bert().train()
    model.bert.encoder.eval()
    modes, state = [item.training for item in model.modules()], torch.get_rng_state()
    found = live_trial.live_run(live(model), model)
    assert isinstance(found, RunTrial) and found.scope.inputs == 16 and found.scope.batches == 0
    assert (found.in_train_mode, found.noun, found.repeats_equal, found.ignores_middle) == (True, "input", True, False)
    assert [item.training for item in model.modules()] == modes and torch.equal(torch.get_rng_state(), state)
    again = live_trial.live_run(live(model.eval()), model)
    assert isinstance(again, RunTrial) and again.in_train_mode is False


@pytest.mark.parametrize(
    ("task", "noun"),
    [(Task.IMAGE_CLASSIFICATION, "image"), (Task.VIDEO_CLASSIFICATION, "video"), (Task.AUDIO_XVECTOR, "sound")],
)
def test_what_an_input_is_called(task: Task, noun: str) -> None:
    row = {"pixel_values": torch.ones(1, 3)}

    class Model(nn.Linear):
        config = SimpleNamespace(problem_type="regression")

        def forward(self, pixel_values: torch.Tensor) -> Any:
            return SimpleNamespace(logits=super().forward(pixel_values))

    model = Model(3, 1)
    found = live_trial._observe_rows(live(model, task), model, [row, row])
    assert (found.noun, found.scope.inputs) == (noun, 2) and found.all_alike


def test_why_a_model_in_memory_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bert()
    for seen, reason in (
        (live(model, is_sharded=True), "no process holds all of its weights"),
        (live(bert().to("meta")), "no process holds all of its weights"),
        (live(nn.Linear(2, 2)), "it has no configuration"),
    ):
        assert str(live_trial.live_run(seen, seen.unwrapped.module)).startswith(reason)
    parameters = sum(item.numel() for item in model.parameters())
    for most, is_called in ((parameters, True), (parameters - 1, False)):
        monkeypatch.setattr(live_trial, "_MOST_PARAMETERS", most)
        assert isinstance(live_trial.live_run(live(model), model), RunTrial) == is_called
    monkeypatch.setenv(deciding.OFF, "1")
    assert live_trial.live_run(live(model), model) == f"{deciding.OFF} is set"


def test_inputs_that_cannot_be_made_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bert()
    build = "headscope.core.trace.batch.probe_batch.build_probe"
    monkeypatch.setattr(build, Mock(side_effect=ZeroDivisionError))
    with pytest.raises(Unsupported, match="no inputs for it: ZeroDivisionError"):
        live_trial.random_rows(model, TASK)
    assert "no inputs for it" in str(live_trial.live_run(live(model), model))
    monkeypatch.setattr(build, Mock(side_effect=Unsupported("none", "")))
    with pytest.raises(Unsupported, match=r"^none"):
        live_trial.random_rows(model, TASK)


def test_rows_are_of_one_input_each_and_of_four_turns() -> None:
    rows = live_trial.random_rows(bert(), TASK)
    assert len(rows) == 16 and all(row["input_ids"].shape[0] == 1 for row in rows)
    assert len({tuple(row["input_ids"].flatten().tolist()) for row in rows}) >= 8
    assert all("labels" not in row for row in rows)


def test_pefts_own_model_is_what_is_called() -> None:
    inner, wrapped = bert(), type("PeftModelForSequenceClassification", (), {})()
    assert live_trial.called_module(wrapped, inner) is wrapped and live_trial.called_module(nn.Module(), inner) is inner


def row_of(ids: list[int], mask: list[int] | None = None) -> dict[str, Any]:
    made = {"input_ids": torch.tensor([ids])}
    return made if mask is None else made | {"attention_mask": torch.tensor([mask])}


def test_other_words_are_those_of_other_rows_and_then_of_the_vocabulary() -> None:
    model = bert(pad_token_id=0, eos_token_id=3)
    row, other = row_of([10, 11, 12, 13, 3, 0], [1, 1, 1, 1, 1, 0]), row_of([20, 21, 12, 3])

    def put_in(row: Any, turn: int = 0, rows: Any = (row, other)) -> Any:
        found = live_trial._with_other_words(rows, model, row, turn)
        return None if found is None else found["input_ids"][0].tolist()

    assert put_in(row) == [10, 20, 21, 13, 3, 0]
    assert put_in(row, 1) == [10, 4, 5, 13, 3, 0]  # of 97 ordinary tokens: 1, 2, 4, ...
    assert put_in(row_of([10, 11, 12, 13, 3, 0])) == [10, 20, 21, 13, 3, 0]
    assert put_in(row_of([10, 11, 12])) is None and put_in(row, 0, [row]) is None and put_in(row, 1, [row]) is None
    assert put_in(row_of([10, 11, 12, 13, 14], [0, 1, 1, 1, 1])) == [10, 11, 20, 21, 14]
    assert live_trial._with_other_words([], model, {"pixel_values": torch.ones(1)}) is None
    assert live_trial._with_other_words([], model, {"input_ids": [[1]]}) is None
    assert live_trial._with_other_words([], model, {"input_ids": torch.ones(1, 2, 3, dtype=torch.long)}) is None


def test_a_large_vocabulary_is_tried_evenly() -> None:
    row, other = row_of([10, 11, 12, 13]), row_of([20, 21])
    found = live_trial._with_other_words([row, other], bert(vocab_size=2802, pad_token_id=0), row, 1)
    assert found is not None and found["input_ids"][0].tolist() == [10, 5, 7, 13]  # each second of 2801


# ---- its scores beside those of a fresh load


def test_scores_of_a_model_in_memory() -> None:
    model = bert().train()
    state = torch.get_rng_state()
    own = scored(model)
    assert isinstance(own, ScoredModel) and model.training and torch.equal(torch.get_rng_state(), state)
    assert (len(own.rows), len(own.scores), own.dtype, own.is_elsewhere) == (16, 16, "float32", False)
    assert own.in_train_mode and own.again is not own.scores[0]
    with torch.no_grad():
        expected = model.eval()(**own.rows[0]).logits
    assert isinstance(own.scores[0], torch.Tensor) and torch.allclose(own.scores[0], expected)
    assert isinstance(own.again, torch.Tensor) and torch.equal(own.again, own.scores[0])
    model.classifier.double()
    mixed = scored(model)
    assert isinstance(mixed, ScoredModel) and mixed.dtype == "" and isinstance(mixed.scores[0], str)
    assert isinstance(half := scored(bert().bfloat16().train()), ScoredModel) and half.dtype == "bfloat16"
    assert half.in_train_mode


def test_why_scores_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    own_class = type("MyBert", (type(bert()),), {})
    for module, reason in (
        (own_class(bert().config), "MyBert isn't one of Transformers' own classes for classification"),
        (bert().bert, "BertModel isn't one of"),
        (bert().to("meta"), "no process holds all of its weights"),
        (nn.Linear(1, 1), "it is not a model of Transformers alone"),
    ):
        assert str(scored(module)).startswith(reason)
    plain = unwrap(bert())
    for fields in ({"is_sharded": True}, {"offloaded": {"a": 1}}):
        changed: Any = replace(plain, **fields)
        assert scores._why_not_called(changed) == "no process holds all of its weights"
    changed = replace(plain, scorer=SimpleNamespace(inside=plain.module))  # type: ignore[arg-type]
    assert scores._why_not_called(changed) == "it is not a model of Transformers alone"
    monkeypatch.setattr(scores, "random_rows", Mock(side_effect=Unsupported("none", "")))
    assert scored(bert()) == "none"
    monkeypatch.setenv(deciding.OFF, "1")
    assert scored(bert()) == f"{deciding.OFF} is set"


def test_a_fresh_load_is_called_in_the_format_of_the_other(tmp_path: Path) -> None:
    model: Any = trained("bert").model
    model.save_pretrained(tmp_path)
    request = Request(Location(str(tmp_path)))
    rows = live_trial.random_rows(model, TASK)
    found = score_checkpoint(request, rows, "")
    assert isinstance(found, tuple) and len(found) == 16
    with torch.no_grad():
        # Not to the last bit: some CPUs add in another order where the weights lie elsewhere in memory.
        torch.testing.assert_close(torch.as_tensor(found[0]), model.eval()(**rows[0]).logits, atol=1e-5, rtol=0)
        half = score_checkpoint(request, rows[:1], "bfloat16")
        expected = deepcopy(model).bfloat16()(**rows[0]).logits.float()
    assert isinstance(half, tuple) and isinstance(half[0], torch.Tensor)
    assert torch.equal(half[0], expected) and not torch.equal(half[0], torch.as_tensor(found[0]))
    failed = score_checkpoint(request, [{"input_ids": torch.tensor([[9999]])}], "")
    assert isinstance(failed, tuple) and str(failed[0]).startswith("IndexError")
    (tmp_path / "model.safetensors").write_bytes(b"no")
    assert "model.safetensors" in str(score_checkpoint(request, rows, ""))


ONE = torch.tensor([[1.0, -2.0]])


def compared(own: Any, fresh: Any, again: Any = None, **fields: Any) -> ScoreComparison:
    first = own[0] if again is None else again
    options: dict[str, Any] = {"dtype": "float32", "is_elsewhere": False, "in_train_mode": False} | fields
    return compared_scores(ScoredModel((), tuple(own), first, **options), fresh)


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({}, 2e-4),
        ({"dtype": ""}, 2e-4),
        ({"is_elsewhere": True}, 2e-2),
        ({"dtype": "float16"}, 32 * 2**-10),
        ({"dtype": "bfloat16", "is_elsewhere": True}, 32 * 2**-7),
    ],
)
@pytest.mark.parametrize("share", [0.9, 1.1])
def test_how_far_scores_may_be_apart(fields: dict[str, Any], bound: float, share: float) -> None:
    found = compared([ONE, ONE], [ONE, ONE + share * bound], **fields)
    assert (found.inputs, found.differing) == (2, int(share > 1)) and found.bound == pytest.approx(bound)
    assert found.largest == pytest.approx(share * bound, rel=1e-2) and found.repeats_equal
    assert compared([ONE], [ONE], again=ONE + share * bound, **fields).repeats_equal == (share < 1)


def test_comparisons_that_have_no_number() -> None:
    nan = torch.tensor([[float("nan"), -2.0]])
    both = compared([nan, ONE * 1e-3], [nan, ONE * 1e-3])
    assert (both.differing, both.largest) == (0, 0.0) and both.bound == pytest.approx(2e-4)
    assert compared([ONE * 1e-3], [ONE * 1e-3]).bound == pytest.approx(1e-5)
    one = compared([ONE, ONE], [ONE, nan])
    assert (one.differing, one.largest) == (1, None)
    shapes = compared([ONE], [ONE[:, :1]])
    assert (shapes.reason, shapes.inputs) == ("the two models return scores of different shapes", 0)
    raised = compared([ONE, "raised", ONE], ["other", ONE, ONE], in_train_mode=True)
    assert (raised.live_error, raised.fresh_error, raised.inputs, raised.in_train_mode) == ("raised", "other", 1, True)
    nothing = compared(["raised"], [ONE])
    assert (nothing.live_error, nothing.inputs, nothing.largest) == ("raised", 0, None)
    assert compared([ONE], [ONE], again="raised").repeats_equal and compared(["raised", ONE], [ONE, ONE]).repeats_equal


# ---- the process


ENDED = "the process that ran it was ended"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("answer", "answer"),
        (TimeoutError(), "it took more than 182 seconds"),
        (WorkerEnded(-9), f"{ENDED} by signal 9: a crash of a library, or too little memory"),
        (WorkerEnded(3), f"{ENDED} by exit code 3: a crash of a library, or too little memory"),
        (WorkerEnded(0), f"{ENDED} by exit code 0: a crash of a library, or too little memory"),
        (Unsupported("no such thing", ""), "no such thing"),
    ],
)
def test_whatever_ends_the_process_is_a_reason(answer: Any, expected: str) -> None:
    worker = Mock()
    worker.call.side_effect = [answer]
    assert trial_process._call_worker(worker, 40_000_000, print, 1, 2) == expected
    worker.call.assert_called_once_with(print, 1, 2, seconds=182.0)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Stands for the worker, and answers at once."""
    worker = MagicMock()
    worker.__enter__.return_value = worker
    worker.call.return_value = RunTrial(RunScope(2, 1, 3, "cpu"))
    monkeypatch.setattr(trial_process, "Worker", lambda stderr: worker)
    return worker


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    trained("bert").model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_run_is_asked_of_the_process_and_kept(
    stored: Path, tmp_path: Path, process: MagicMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADSCOPE_NO_CACHE", raising=False)
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    request = Request(Location(str(stored), hub=HubOptions(offline=True)), cache=True, run=True)
    checkpoint = examine("check", request, None)
    told: list[str] = []

    def ran(request: Request = request) -> Any:
        told.clear()
        checkpoint.request = request
        with TrialProcess() as runner:
            return runner.run(checkpoint, told.append)

    answer = process.call.return_value
    assert ran() == answer and told == ["loading the model and calling it"] and process.end.called
    _, given, device = process.call.call_args.args
    assert (given.cache, given.prove, given.location.hub.offline, device) == (False, False, True, "cpu")
    assert ran() == answer and told == []
    assert ran(replace(request, cache=False)) == answer and told
    with pytest.raises((UsageError, Unsupported)):
        ran(replace(request, run_device="meta"))
    assert ran(replace(request, run=False)) == "--no-run leaves it out" and not told
    (stored / "tokenizer.json").write_text("{}")
    other = process.call.return_value = replace(answer, scope=RunScope(0, 0, 0, "cpu"))
    assert ran() == other and told, "a file has changed"
    assert ran() == other and told, "a load that failed may be this machine's"
    process.call.side_effect = Unsupported("why", "")
    assert ran() == "why" and ran() == "why" and told


def test_the_process_starts_once_and_without_a_run_not_at_all(process: MagicMock) -> None:
    with TrialProcess() as runner:
        runner.begin()
        first: Any = runner._worker
        runner.begin()
        assert runner._worker is first and first is process
    process.end.assert_called_once_with()
    process.call.assert_called_once_with(trial_process.import_libraries)
    with TrialProcess():
        pass
    process.end.assert_called_once_with()


def test_a_process_that_cannot_import_says_so_at_its_call(process: MagicMock) -> None:
    process.call.side_effect = WorkerEnded(1)
    with TrialProcess() as runner:
        runner.begin()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("why", ScoreComparison(reason="why", in_train_mode=True)),
        (RuntimeError("broken"), ScoreComparison(fresh_error="broken", in_train_mode=True)),
    ],
)
def test_a_fresh_load_that_gives_no_scores(
    answer: Any, expected: ScoreComparison, process: MagicMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_process, "_call_worker", lambda *given: answer)
    request: Any = None
    assert beside_fresh_load(bert().train(), request) == expected
    process.__exit__.assert_called_once()


def test_a_fresh_load_is_asked_with_the_size_and_the_inputs(
    monkeypatch: pytest.MonkeyPatch, process: MagicMock
) -> None:
    model, request = bert(), Request(Location("somewhere"))
    own = scored(model)
    assert isinstance(own, ScoredModel)
    call = Mock(return_value=own.scores)
    monkeypatch.setattr(trial_process, "_call_worker", call)
    found = beside_fresh_load(model, request)
    [((worker, size, function, asked, rows, dtype), _)] = call.call_args_list
    assert (worker, function, asked, dtype) == (process, score_checkpoint, request, "float32")
    assert size == 4 * sum(item.numel() for item in model.parameters()) and len(rows) == 16
    assert (found.inputs, found.differing) == (16, 0)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2 * size))
    assert beside_fresh_load(model, request).inputs == 16
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2 * size - 1))
    assert beside_fresh_load(model, request).reason.startswith("a second load needs memory: its weights take")
