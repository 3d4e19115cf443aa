"""Buffers of heads against Transformers: what the loader misses, and what a real forward reads."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

import headscope
from headscope.shell import main
from tests.edits import edit_tensors

_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Net:
    """A class with BatchNorm at a small size; `head` names the BatchNorm that stands in its head, if any does."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    head: str = ""

    def build(self) -> PreTrainedModel:
        torch.manual_seed(0)
        cls = getattr(transformers, self.name)
        model: PreTrainedModel = cls(cls.config_class(num_labels=3, **self.config)).eval()
        for _, buffer in model.named_buffers():  # as after training: statistics are not the values of a fresh layer
            if buffer.is_floating_point():
                buffer.copy_(torch.rand(buffer.shape) + 0.5)
        for parameter in model.parameters():  # and biases are no zeros
            if not parameter.any():
                parameter.data.uniform_(-0.5, 0.5)
        return model


_LEVIT = {
    "image_size": 128,
    "hidden_sizes": [16, 24, 32],
    "num_attention_heads": [2, 2, 2],
    "depths": [1, 1, 1],
    "key_dim": [8, 8, 8],
}
_TINY = {"image_size": 64}
_SMALL = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
NETS = (
    Net("LevitForImageClassification", _LEVIT, "classifier.batch_norm"),
    Net("SwiftFormerForImageClassification", {"depths": [1, 1, 1, 1], "embed_dims": [8, 16, 24, 32]}, "norm"),
    Net("ResNetForImageClassification", _SMALL),
    Net("RegNetForImageClassification", _SMALL | {"layer_type": "y", "groups_width": 8}),
    Net("MobileNetV1ForImageClassification", _TINY | {"depth_multiplier": 0.25}),
    Net("MobileNetV2ForImageClassification", _TINY | {"depth_multiplier": 0.35}),
    Net("CvtForImageClassification", {"embed_dim": [8, 16, 24], "num_heads": [1, 2, 3], "depth": [1, 2, 3]}),
)
_WITH_BUFFERS = [net for net in NETS if net.head]


def _save(net: Net, folder: Path, *without: str) -> PreTrainedModel:
    """Saves the model, then takes the tensors out of the file whose names begin so."""
    model = net.build()
    model.save_pretrained(folder)
    edit_tensors(
        folder / "model.safetensors",
        lambda state: {key: value for key, value in state.items() if not key.startswith(without)},
    )
    return model


def _missing(net: Net, folder: Path) -> set[str]:
    """What the real load does not find in the file."""
    _, info = getattr(transformers, net.name).from_pretrained(folder, output_loading_info=True)
    return set(info["missing_keys"])


def _read_by_a_forward(model: PreTrainedModel, names: set[str]) -> set[str]:
    """The buffers that reach the scores of a real model in evaluation mode: NaN in them is NaN in the scores."""
    size = getattr(model.config, "image_size", 64)
    pixels, held, found = torch.rand(1, 3, size, size), dict(model.named_buffers()), set()
    for name in names:
        if not held[name].is_floating_point():  # a forward in evaluation mode could only count with it
            continue
        kept = held[name].clone()
        held[name].fill_(float("nan"))
        with torch.no_grad():
            scores = model(pixel_values=pixels).logits
        held[name].copy_(kept)
        if scores.isnan().any():
            found.add(name)
    return found


@pytest.mark.parametrize("net", NETS, ids=lambda net: net.name)
def test_a_buffer_is_live_where_its_values_change_the_scores(net: Net, tmp_path: Path) -> None:
    model = _save(net, tmp_path)
    report = headscope.inspect(str(tmp_path), offline=True)
    buffers = {item.name for item in report.weights.parameters if item.is_buffer}
    some = {name for name in buffers if net.head and name.startswith(net.head)} | set(sorted(buffers)[:9])
    assert some - set(report.head.not_live) == _read_by_a_forward(model, some) != set()
    listed = {item.name: item for item in report.head.buffers}
    assert {name for name, item in listed.items() if item.live} == {
        f"{net.head}.{name}" for name in _STATISTICS if net.head
    }
    assert all(item.kind == "buffer" and item.status == "loaded" for item in listed.values())
    assert all(item.kind == "parameter" for item in report.head.parameters)
    assert all(item.shape == tuple(model.state_dict()[name].shape) for name, item in listed.items())


@pytest.mark.parametrize("net", _WITH_BUFFERS, ids=lambda net: net.name)
def test_a_head_without_its_statistics_is_not_green(
    net: Net, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = {f"{net.head}.{name}" for name in _STATISTICS}
    _save(net, tmp_path, *lost)
    assert _missing(net, tmp_path) == lost
    report = headscope.inspect(str(tmp_path), offline=True)
    assert set(report.weights.new) == lost
    assert {item.name for item in report.head.buffers if item.status == "new"} == lost
    assert "Head fully loaded" not in str(report)
    assert "Head partly new" in str(report)
    document = report.to_dict()
    assert {item["name"] for item in document["head"]["buffers"] if item["status"] == "new"} == lost
    assert {item["kind"] for item in document["head"]["buffers"]} == {"buffer"}
    found = headscope.check(str(tmp_path), "inference", offline=True)
    assert (found.verdict, [item.id for item in found.findings if item.severity == "error"]) == ("failed", ["HS103"])
    assert main(["inspect", str(tmp_path), "--offline", "-q", "--exit-code"]) == 1
    assert main(["check", str(tmp_path), "--for", "inference", "--offline", "-q"]) == 1
    capsys.readouterr()


@pytest.mark.parametrize("net", _WITH_BUFFERS, ids=lambda net: net.name)
def test_a_counter_that_only_training_reads_is_no_loss(net: Net, tmp_path: Path) -> None:
    counter = f"{net.head}.num_batches_tracked"
    _save(net, tmp_path, counter)
    assert _missing(net, tmp_path) == {counter}
    report = headscope.inspect(str(tmp_path), offline=True)
    assert report.weights.new == (counter,)
    assert "Head fully loaded" in str(report)
    assert headscope.check(str(tmp_path), "inference", offline=True).verdict == "passed"


@pytest.mark.parametrize("net", [net for net in NETS if not net.head], ids=lambda net: net.name)
def test_statistics_of_the_base_model_are_its_loss(net: Net, tmp_path: Path) -> None:
    model = net.build()
    lost = next(name for name in model.state_dict() if name.endswith("running_var"))
    _save(net, tmp_path, lost)
    assert _missing(net, tmp_path) == {lost}
    found = headscope.check(str(tmp_path), "inference", offline=True)
    assert [item.parameters for item in found.findings if item.id == "HS101"] == [(lost,)]
    assert found.verdict == "failed"


def test_nan_in_the_statistics_of_a_head_is_found(tmp_path: Path) -> None:
    net = NETS[0]
    _save(net, tmp_path)
    name = f"{net.head}.running_var"
    edit_tensors(tmp_path / "model.safetensors", lambda state: state | {name: state[name] * float("nan")})
    found = headscope.check(str(tmp_path), "inference", offline=True)
    assert [item.parameters for item in found.findings if item.id == "HS501"] == [(name,)]


def test_a_model_in_memory_lists_its_buffers() -> None:
    report = headscope.inspect(NETS[0].build())
    assert {item.name for item in report.head.buffers if item.live} == {
        f"{NETS[0].head}.{name}" for name in _STATISTICS
    }


def _classes() -> Iterator[str]:
    for kind in ("IMAGE", "VIDEO", "AUDIO"):
        for names in getattr(modeling_auto, f"MODEL_FOR_{kind}_CLASSIFICATION_MAPPING_NAMES").values():
            yield from (names,) if isinstance(names, str) else names


def _buffers_outside_the_base(name: str) -> set[str] | None:
    """Persistent buffers beside the base model of a class as configured by default; None where it has none."""
    try:
        cls = getattr(transformers, name)
        if not any(word in Path(inspect.getfile(cls)).read_text() for word in ("BatchNorm", "register_buffer")):
            return None
        with torch.device("meta"):
            model = cls(cls.config_class())
    except Exception:  # an optional dependency is missing, or the defaults make no model
        return None
    held, prefix = dict(model.named_buffers()), f"{model.base_model_prefix}."
    return {key for key in model.state_dict() if key in held and not key.startswith(prefix)}


def test_every_installed_head_with_statistics_is_among_the_tested() -> None:
    """A class of a newer Transformers with BatchNorm beside its base model has to be added above."""
    found = {name: _buffers_outside_the_base(name) for name in dict.fromkeys(_classes())}
    assert sum(buffers is not None for buffers in found.values()) > 10
    owners = {name for name, buffers in found.items() if buffers}
    assert owners - _WITHOUT_BASE <= {net.name for net in NETS}


_WITHOUT_BASE = {
    "HGNetV2ForImageClassification",
    "PPLCNetForImageClassification",
    "LevitForImageClassificationWithTeacher",
}
"""Their encoder stands in the classifier itself, so the prefix tells nothing; or the same head twice."""
