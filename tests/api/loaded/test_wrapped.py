"""Models in memory inside the wrappers of PyTorch, PEFT and Accelerate: the model inside is what is examined."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from transformers.models.bert.modeling_bert import BertLayer

import headscope
from headscope.core.facts.verdict import Verdict
from headscope.errors import UsageError
from tests.families import FAMILIES
from tests.states.table.small import one_process

BERT = transformers.BertForSequenceClassification
NAMED = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
TOKENS = {"input_ids": torch.randint(5, 40, (2, 6)), "attention_mask": torch.ones(2, 6, dtype=torch.long)}
Wrap = Callable[[Any], nn.Module]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole")
    FAMILIES["bert"].build("BertForSequenceClassification", **NAMED).save_pretrained(place)
    return place


@pytest.fixture(autouse=True, scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_process(tmp_path_factory.mktemp("store")):
        yield


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def with_adapter(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"]))


def prepared(model: Any) -> Any:
    state = pytest.importorskip("accelerate.state")
    accelerate = pytest.importorskip("accelerate")
    state.AcceleratorState._reset_state(reset_partial_state=True)
    try:
        return accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(model)
    finally:
        state.AcceleratorState._reset_state(reset_partial_state=True)


def sharded(model: Any) -> Any:
    mesh = init_device_mesh("cpu", (1,))
    for layer in model.bert.encoder.layer:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def flattened(model: Any, **more: Any) -> Any:
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **more)


LAYERS = ModuleWrapPolicy({BertLayer})
FLAT = ("FullyShardedDataParallel",)
WHOLE: dict[str, tuple[Wrap, tuple[str, ...]]] = {
    "ddp": (nn.parallel.DistributedDataParallel, ("DistributedDataParallel",)),
    "dp": (nn.DataParallel, ("DataParallel",)),
    "compiled": (compiled, ("OptimizedModule",)),
    "prepared": (prepared, ("Accelerator",)),
    "adapter": (with_adapter, ("PeftModelForSequenceClassification",)),
    "ddp of compiled of adapter": (
        lambda model: nn.parallel.DistributedDataParallel(compiled(with_adapter(model))),
        ("DistributedDataParallel", "OptimizedModule", "PeftModelForSequenceClassification"),
    ),
    "compiled of ddp": (lambda model: compiled(nn.DataParallel(model)), ("OptimizedModule", "DataParallel")),
}
SHARDED: dict[str, tuple[Wrap, tuple[str, ...]]] = {
    "fully_shard": (sharded, ("FSDPModule",)),
    "compiled of fully_shard": (lambda model: compiled(sharded(model)), ("OptimizedModule", "FSDPModule")),
    "flat": (lambda model: flattened(model, use_orig_params=False), FLAT),
    "original": (lambda model: flattened(model, use_orig_params=True), FLAT),
    "flat by layer": (lambda model: flattened(model, use_orig_params=False, auto_wrap_policy=LAYERS), FLAT),
    "original by layer": (lambda model: flattened(model, use_orig_params=True, auto_wrap_policy=LAYERS), FLAT),
}
over_whole = pytest.mark.parametrize(("wrap", "wrappers"), WHOLE.values(), ids=WHOLE)
over_sharded = pytest.mark.parametrize(("wrap", "wrappers"), SHARDED.values(), ids=SHARDED)


def names_and_shapes(report: Any) -> dict[str, tuple[int, ...]]:
    return {item.name: item.shape for item in report.weights.parameters if not item.is_buffer}


@over_whole
def test_the_model_inside_is_examined_and_its_wrappers_are_named(
    wrap: Wrap, wrappers: tuple[str, ...], folder: Path
) -> None:
    model = BERT.from_pretrained(folder)
    made = wrap(model)
    inner = {name: tuple(item.shape) for name, item in model.named_parameters(remove_duplicate=False)}
    report, result = headscope.inspect(made), headscope.check(made, "inference")
    assert report.model.wrappers == wrappers
    assert report.model.class_name == BERT.__name__
    assert "".join(f", inside {item}" for item in reversed(wrappers)) in " ".join(str(report).split())
    live = {item.name: item for item in report.head.parameters if item.live}
    assert {name: item.shape for name, item in live.items()}.items() <= inner.items()
    assert {item.status.value for item in live.values()} == {"loaded"}
    assert result.verdict is Verdict.PASSED
    weights = headscope.diff_weights(made)
    assert (weights.head, weights.command) == (None, "diff-weights")
    plain = {item.name: item.status for item in report.weights.parameters}
    assert {item.name: item.status for item in weights.weights.parameters} == plain


@over_whole
def test_the_scores_of_a_pass_are_those_of_the_wrapper(wrap: Wrap, wrappers: tuple[str, ...], folder: Path) -> None:
    made = wrap(BERT.from_pretrained(folder)).eval()
    with torch.no_grad():
        wanted = made(**TOKENS).logits.float()
    shown = headscope.forward(made, example_inputs=TOKENS)
    assert torch.allclose(torch.tensor(shown.logits), wanted, atol=1e-6)
    assert shown.device == "cpu"
    chances = {score.label: score.probability for score in shown.scored[0].scores}
    assert [chances[label] for label in "abc"] == pytest.approx(wanted.softmax(-1)[0].tolist(), abs=1e-6)


@over_sharded
def test_shards_have_the_names_and_shapes_of_the_whole_model(
    wrap: Wrap, wrappers: tuple[str, ...], folder: Path
) -> None:
    model = BERT.from_pretrained(folder)
    plain = headscope.inspect(model)
    wanted = {name: tuple(item.shape) for name, item in model.named_parameters()}
    made = wrap(model)
    with torch.no_grad():
        scores = made.eval()(**TOKENS).logits
    for _ in range(2):  # the first look leaves the model as it was
        report = headscope.inspect(made)
        assert report.model.wrappers == wrappers
        assert report.model.class_name == BERT.__name__
        assert names_and_shapes(report) == wanted
        assert report.model.parameters == plain.model.parameters
        assert (report.head.formula, report.head.pooling) == (plain.head.formula, plain.head.pooling)
        assert {item.status.value for item in report.head.parameters} == {"unknown"}
        assert any("sharded" in note for note in report.notes)
        assert not any("resized" in note for note in report.notes)
    with torch.no_grad():
        assert torch.equal(made(**TOKENS).logits, scores)
    assert names_and_shapes(headscope.diff_weights(made)) == wanted
    shapes = headscope.forward(made)
    assert (shapes.device, shapes.logits_shape, shapes.logits) == ("meta", ("batch", 3), ())


@over_sharded
def test_what_shards_do_not_show_is_not_determined(wrap: Wrap, wrappers: tuple[str, ...], folder: Path) -> None:
    made = wrap(BERT.from_pretrained(folder))
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    result = headscope.check(made, "training", optimizer=optimizer)
    assert result.verdict is Verdict.NOT_DETERMINED
    assert not [item for item in result.findings if item.id.startswith("HS6")]
    assert any("values" in item.topic for item in result.not_determined)


def test_a_head_that_the_load_did_not_give_is_new_in_shards_too(folder: Path, tmp_path: Path) -> None:
    BERT.from_pretrained(folder).bert.save_pretrained(tmp_path)
    model, info = BERT.from_pretrained(tmp_path, num_labels=3, output_loading_info=True)
    result = headscope.check(flattened(model, use_orig_params=False), "inference", loading_info=info)
    assert set(result.report.weights.new) == set(info["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    assert result.verdict is Verdict.NOT_DETERMINED  # of the pooler nobody knows


def test_a_frozen_head_in_shards_is_found(folder: Path) -> None:
    model = BERT.from_pretrained(folder)
    model.classifier.requires_grad_(False)
    made = flattened(model, use_orig_params=True)
    found = [item for item in headscope.check(made).findings if item.id == "HS601"]
    assert [item.parameters for item in found] == [("classifier.weight", "classifier.bias")]


def test_tied_weights_stay_one_parameter_in_shards(tmp_path: Path) -> None:
    model = FAMILIES["bert"].build("BertForMaskedLM")
    wanted = {name: tuple(item.shape) for name, item in model.named_parameters(remove_duplicate=False)}
    count = sum(item.numel() for item in model.parameters())
    report = headscope.inspect(flattened(model, use_orig_params=False))
    assert names_and_shapes(report) == wanted
    assert report.model.parameters.total == count


def test_layers_that_save_activations_are_compared_by_their_own_names(folder: Path) -> None:
    model = BERT.from_pretrained(folder)
    for at, layer in enumerate(model.bert.encoder.layer):
        model.bert.encoder.layer[at] = checkpoint_wrapper(layer)
    report = headscope.check(model, "inference").report
    assert {item.status.value for item in report.weights.parameters if not item.is_buffer} == {"loaded"}


def test_a_wrapped_model_stays_as_it_was(folder: Path) -> None:
    made = nn.parallel.DistributedDataParallel(BERT.from_pretrained(folder)).train()
    before = copy.deepcopy(made.state_dict())
    headscope.forward(made, example_inputs=TOKENS)
    assert made.training
    assert all(torch.equal(item, before[name]) for name, item in made.state_dict().items())


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("forward", {"text": "hello"}, "a model in memory has none"),
    ("forward", {"device": "cpu"}, "runs where it is"),
    ("forward", {"num_labels": 3}, "num_labels is an option for a checkpoint"),
    ("diff_weights", {"num_labels": 3}, "num_labels is an option for a checkpoint"),
]


@pytest.mark.parametrize(("command", "options", "sentence"), REFUSED)
def test_options_for_checkpoints_are_refused(command: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        getattr(headscope, command)(FAMILIES["bert"].build("BertForSequenceClassification"), **options)


def test_options_for_modules_are_refused_for_checkpoints() -> None:
    for command in (headscope.forward, headscope.diff_weights):
        with pytest.raises(UsageError, match=r"^loading_info "):
            command("bert-base-uncased", offline=True, loading_info={})  # type: ignore[call-overload]
