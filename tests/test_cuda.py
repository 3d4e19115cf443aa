"""What headscope does where the numbers lie on a GPU: the answers of the CPU, and the model left as it was.

Scores are compared with those of Transformers on the same GPU.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from families import FAMILIES
from labeled.trained import save, texts, trained, write_csv
from saving import save_safetensors
from torch import nn
from transformers import BertForSequenceClassification, Trainer, TrainingArguments

import headscope
from headscope.core.facts.verdict import Verdict
from headscope.errors import Unsupported
from headscope.integrations.trainer import HeadscopeCallback
from headscope.shared.labeled.facts import Predictions
from headscope.shared.trial.deciding import OFF
from tests.verdicts import runs
from tests.verdicts.cases import sampled
from tests.verification.tiny import ids, loaded

CUDA = "cuda"
NAMES = ("negative", "neutral", "positive")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")


@contextmanager
def untouched_generator() -> Iterator[None]:
    """The next random number on the GPU is the one that was next."""
    torch.cuda.manual_seed(20)
    torch.rand(3, device=CUDA)
    state = torch.cuda.get_rng_state()
    yield
    assert torch.equal(torch.cuda.get_rng_state(), state)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that was trained for a while, on the CPU."""
    return save(trained(NAMES), tmp_path_factory.mktemp("trained") / "model", NAMES)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = [(text, NAMES[place]) for text, place in texts(3, 120)]
    return write_csv(tmp_path_factory.mktemp("data") / "rows.csv", named)


def _allocated() -> int:
    gc.collect()
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_is_described_as_on_the_cpu(name: str, dtype: torch.dtype) -> None:
    family = FAMILIES[name]
    model = family.build(family.classifier).to(dtype).eval()
    on_cpu = headscope.inspect(model, prove=True)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.to(CUDA)
    headscope.inspect(model)  # the first product of matrices leaves cuBLAS's workspace
    taken = _allocated()
    with untouched_generator():
        found = headscope.inspect(model, prove=True)
    assert found.head == on_cpu.head
    assert found == on_cpu
    assert _allocated() == taken
    assert {str(item.device) for item in model.parameters()} == {"cuda:0"}
    assert all(torch.equal(value.cpu(), before[key]) for key, value in model.state_dict().items())


def test_a_model_in_parts_on_two_devices_is_described_as_on_one(folder: Path) -> None:
    whole = headscope.inspect(loaded(folder)).head
    parts = loaded(folder, device_map={"bert": CUDA, "classifier": "cpu", "dropout": "cpu"})
    head = headscope.inspect(parts).head
    assert head is not None and whole is not None
    assert (head.formula, head.pooling, head.stages) == (whole.formula, whole.pooling, whole.stages)
    assert headscope.verify(parts, folder).verdict is Verdict.PASSED


@pytest.mark.parametrize("map_", ["auto", CUDA, "balanced"])
def test_what_accelerate_placed_is_verified(folder: Path, map_: str) -> None:
    result = headscope.verify(loaded(folder, device_map=map_), folder)
    assert (result.verdict, result.findings) == (Verdict.PASSED, ())


def test_the_default_device_changes_nothing(folder: Path) -> None:
    expected = headscope.inspect(folder, prove=True, cache=False), headscope.check(folder, cache=False)
    with torch.device(CUDA):
        assert (headscope.inspect(folder, prove=True, cache=False), headscope.check(folder, cache=False)) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_number_changed_on_the_gpu_is_found(folder: Path, dtype: torch.dtype) -> None:
    model = loaded(folder, dtype=dtype).to(CUDA)
    assert headscope.verify(model, folder).verdict is Verdict.PASSED
    with torch.no_grad():
        model.classifier.weight[1, 3] += 0.5
    result = headscope.verify(model, folder)
    assert result.verdict is Verdict.FAILED
    assert {name for finding in result.findings for name in finding.parameters} == {"classifier.weight"}


def test_a_number_that_is_not_finite_on_the_gpu_is_found(folder: Path) -> None:
    model = loaded(folder).to(CUDA)
    with untouched_generator():
        assert headscope.check(model, "inference").verdict is Verdict.PASSED
        assert headscope.check(model, "training").verdict is Verdict.PASSED
    with torch.no_grad():
        model.classifier.weight[1, 3] = float("nan")
    assert headscope.check(model, "inference").verdict is Verdict.FAILED


def test_scores_are_those_of_transformers_on_the_gpu(folder: Path) -> None:
    given = [text for text, _ in texts(3, 5)]
    seen = headscope.forward(folder, device=CUDA, text=given)
    encoded = transformers.AutoTokenizer.from_pretrained(folder)(given, return_tensors="pt", padding=True).to(CUDA)
    with torch.no_grad():
        expected = loaded(folder).to(CUDA)(**encoded).logits.cpu()
    assert torch.allclose(torch.tensor(seen.logits), expected, atol=1e-5)
    assert seen.device.startswith(CUDA)
    with pytest.raises(Unsupported, match="finds no device cuda:99"):
        headscope.forward(folder, device="cuda:99", text="a")


def test_a_model_runs_where_it_is(folder: Path) -> None:
    model = loaded(folder).to(CUDA)
    encoded = dict(transformers.AutoTokenizer.from_pretrained(folder)("sign0x1", return_tensors="pt").to(CUDA))
    seen = headscope.forward(model, example_inputs=encoded)
    with torch.no_grad():
        expected = model(**encoded).logits.cpu()
    assert torch.allclose(torch.tensor(seen.logits), expected, atol=1e-5)
    assert seen.device == "cuda:0"
    assert headscope.forward(model).device == "cuda:0"


def test_half_precision_is_chosen_only_where_it_changes_no_vector(folder: Path, rows: Path, tmp_path: Path) -> None:
    half = save(loaded(folder, dtype=torch.bfloat16), tmp_path / "half", NAMES)
    given: dict[str, Any] = {"data": rows, "text_column": "text", "label_column": "label", "folds": 3}
    for place, dtype in ((folder, "float32"), (half, "bfloat16")):
        on_gpu = headscope.probe(place, device=CUDA, **given)
        on_cpu = headscope.probe(place, **given)
        assert on_gpu.numbers is not None
        assert on_gpu.numbers.precision.dtype == dtype
        for one, other in zip(on_gpu.candidates, on_cpu.candidates, strict=True):
            assert (one.name, one.size) == (other.name, other.size)
            assert one.mean == pytest.approx(other.mean, abs=0.05)


def test_too_little_memory_makes_smaller_batches(folder: Path, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"data": rows, "text_column": "text", "label_column": "label", "folds": 3, "device": CUDA}
    expected = headscope.probe(folder, **given)
    forward, sizes = BertForSequenceClassification.forward, []

    def short_of_memory(self: Any, input_ids: torch.Tensor, **options: Any) -> Any:
        sizes.append(len(input_ids))
        if len(input_ids) > 8:
            torch.empty(1 << 50, dtype=torch.uint8, device=CUDA)  # the allocator's own error
        return forward(self, input_ids, **options)

    monkeypatch.setattr(BertForSequenceClassification, "forward", short_of_memory)
    found = headscope.probe(folder, **given)
    assert max(sizes) > 8 >= min(sizes)
    assert [item.mean for item in found.candidates] == pytest.approx(
        [item.mean for item in expected.candidates], abs=0.02
    )


def test_a_temperature_is_that_of_the_cpu(folder: Path, rows: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"fit": "temperature", "data": rows, "text_column": "text", "label_column": "label"}
    headscope.edit(folder, tmp_path / "cpu", **given)
    headscope.edit(folder, tmp_path / "gpu", device=CUDA, **given)
    weights = [loaded(tmp_path / name).classifier.weight for name in ("cpu", "gpu")]
    assert torch.allclose(*weights, rtol=1e-3)


def test_predictions_are_those_of_the_cpu(folder: Path, rows: Path) -> None:
    given: dict[str, Any] = {"data": rows, "label_column": "label", "text_column": "text", "predict": 64}
    on_cpu, on_gpu = (headscope.check(folder, "inference", device=name, **given) for name in ("cpu", CUDA))
    assert on_cpu.data is not None and on_gpu.data is not None
    one, other = on_cpu.data.predictions, on_gpu.data.predictions
    assert isinstance(one, Predictions) and isinstance(other, Predictions)
    assert (other.order, other.given, other.best) == (one.order, one.given, one.best)
    assert (one.device, other.device) == ("cpu", CUDA)


def test_a_training_on_the_gpu_is_checked_and_its_saves_are_verified(folder: Path, tmp_path: Path) -> None:
    model = loaded(folder)
    callback = HeadscopeCallback(verify_saves=True)
    arguments = TrainingArguments(
        str(tmp_path / "out"), max_steps=4, save_steps=2, report_to=[], per_device_train_batch_size=8, bf16=True
    )
    encode = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = [encode(text, padding="max_length") | {"labels": place} for text, place in texts(3, 32)]
    Trainer(model, arguments, train_dataset=encoded, callbacks=[callback]).train()
    assert next(model.parameters()).is_cuda
    assert [item.verdict for item in callback.saves] == [Verdict.PASSED] * len(callback.saves)
    assert len(callback.saves) >= 2
    assert callback.trained is not None and callback.trained.verdict is Verdict.PASSED


def test_a_save_is_compared_with_the_model_on_the_gpu(folder: Path, tmp_path: Path) -> None:
    model = loaded(folder).to(CUDA)
    save_safetensors(model, tmp_path)
    assert headscope.verify_save(model, tmp_path).verdict is Verdict.PASSED
    nn.init.ones_(model.classifier.weight)
    assert ids(headscope.verify_save(model, tmp_path))


def test_a_compiled_model_and_one_under_autocast_are_described_as_they_are(folder: Path) -> None:
    model = loaded(folder).to(CUDA)
    plain = headscope.inspect(model, prove=True)
    with torch.autocast(CUDA, dtype=torch.bfloat16):
        assert headscope.inspect(model, prove=True).head == plain.head
    assert headscope.inspect(torch.compile(model), prove=True).head == plain.head  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "case", [*sampled(tuple(runs.broken()), 25), *sampled(tuple(runs.healthy()), 40)], ids=lambda case: case.name
)
def test_green_means_that_the_model_answers_on_the_gpu(case: runs.RunCase, dtype: str, tmp_path: Path) -> None:
    """In a process for each: an index out of range leaves the GPU unusable for the process."""
    found = runs.run_case(replace(case, dtype=dtype), tmp_path / "model", CUDA)
    assert not found.is_wrong, found


def test_scores_on_the_gpu_are_those_of_a_fresh_load_on_the_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OFF)
    model = BertForSequenceClassification.from_pretrained(folder).to(CUDA)
    with untouched_generator():
        found = headscope.verify(model, folder)
    assert found.verdict is Verdict.PASSED and found.scores is not None and found.scores.differing == 0, found.scores
    model.classifier.register_forward_hook(lambda module, given, scores: scores.flip(-1))
    assert ids(headscope.verify(model, folder)) == ["HS709"]
