"""The base model's values: what the loader makes of a file, and what the loaded model then answers, is the truth."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

import headscope
from headscope.checks.evidence.base_numbers import live_base_numbers, read_base_numbers
from headscope.checks.facts import BaseNumbers
from headscope.core.facts.stored.location import Location
from headscope.core.source import stored_tensors
from headscope.core.source.checkpoint import examine
from headscope.core.source.request import Request
from headscope.facts import Gap
from headscope.shared.trial.deciding import OFF
from tests.checks.broken import Edit, changed, dropped, filled, put, scaled
from tests.edits import State, edit_json, edit_tensors
from tests.families import FAMILIES
from tests.model.loading.test_quantized import save

_QUERY = "bert.encoder.layer.1.attention.self.query.weight"
_NORM = "bert.encoder.layer.1.output.LayerNorm"
_EMBEDDINGS = tuple(f"bert.embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type"))


def _at(place: int, name: str, value: float) -> Edit:
    """An edit of one number of a tensor."""
    return changed(name, lambda numbers: put(place, value)(numbers.view(-1)).view(numbers.shape))


def _by_an_older_name(state: State) -> None:
    state[f"{_NORM}.gamma"] = put(-1, float("nan"))(state.pop(f"{_NORM}.weight"))


def _all_zeros(state: State) -> None:
    for name, value in state.items():
        if not name.startswith("classifier"):
            state[name] = torch.zeros_like(value)


BROKEN: dict[str, tuple[Edit, str]] = {
    "NaN in the last number": (_at(-1, _QUERY, float("nan")), "float32"),
    "infinity in the last number": (_at(-1, _EMBEDDINGS[0], float("inf")), "float32"),
    "negative infinity in a bias": (_at(-1, f"{_NORM}.bias", float("-inf")), "float32"),
    "beyond float16": (_at(-1, _QUERY, 70_000.0), "float16"),
    "below float16": (_at(-1, _QUERY, -70_000.0), "float16"),
    "zeros throughout": (_all_zeros, "float32"),
    "a last norm of zeros": (filled(f"{_NORM}.weight", f"{_NORM}.bias", value=0.0), "float32"),
    "embeddings of zeros": (filled(*_EMBEDDINGS, value=0.0), "float32"),
    "scales of zeros": (filled(f"{_NORM}.weight", value=0.0), "float32"),
    "NaN under an older name": (_by_an_older_name, "float32"),
    "embeddings of whole zeros": (changed(_EMBEDDINGS[0], scaled(0.0, torch.int8)), "float32"),
}
HEALTHY: dict[str, tuple[Edit, str]] = {
    "as saved": (lambda state: None, "float32"),
    "in float16": (lambda state: None, "float16"),
    "large, and within float16": (_at(-1, _EMBEDDINGS[1], 65_000.0), "float16"),
    "a matrix in float8": (changed(_QUERY, scaled(1.0, torch.float8_e4m3fn)), "float32"),
    "a matrix of complex numbers": (changed(_QUERY, scaled(1.0, torch.complex64)), "float32"),
    "biases of zeros": (filled(f"{_NORM}.bias", "bert.pooler.dense.bias", value=0.0), "float32"),
    "one query of zeros": (filled(_QUERY, value=0.0), "float32"),
    "one layer's values of zeros": (filled(_QUERY.replace("query", "value"), value=0.0), "float32"),
}


def _saved(folder: Path, edit: Edit, dtype: str) -> Path:
    model = FAMILIES["bert"].build("BertForSequenceClassification", num_labels=3, initializer_range=0.2)
    for item in model.parameters():
        if not item.any():
            nn.init.normal_(item, std=0.2)
    model.save_pretrained(folder)
    edit_json(folder / "config.json", {"dtype": dtype})
    edit_tensors(folder / "model.safetensors", edit)
    return folder


def _loaded(folder: Path) -> BertForSequenceClassification:
    return AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").float().eval()


def _faults(folder: Path) -> list[str]:
    """What of the loaded base model is not finite; what holds only zeros, where everything is finite."""
    held = [
        item for item in _loaded(folder).named_parameters() if not item[0].startswith(("classifier", "bert.pooler"))
    ]
    broken = [name for name, item in held if not item.isfinite().all()]
    return sorted(broken or [name for name, item in held if not item.any()])


def _read(folder: Path, **changes: Any) -> Any:
    checkpoint = examine("check", Request(Location(str(folder))), None)
    vars(checkpoint).update(changes)
    return read_base_numbers(checkpoint)


def _answers(folder: Path) -> bool:
    """Whether the scores are finite, and their order depends on the words."""
    with torch.no_grad():
        scores = _loaded(folder)(torch.randint(0, 99, (64, 8), generator=torch.Generator().manual_seed(1))).logits
    if not scores.isfinite().all():
        return False
    apart = scores - scores.mean(1, keepdim=True)
    return bool((apart - apart[:1]).abs().max() > 1e-5)


def _checked(folder: Path) -> Any:
    """What HS504 says of the files; where only a call shows what zeros do, of the loaded model."""
    found = headscope.check(str(folder), "inference", select="HS504", offline=True, run=False)
    return headscope.check(_loaded(folder), "inference", select="HS504") if found.not_determined else found


@pytest.mark.parametrize("name", BROKEN)
def test_numbers_with_which_the_model_can_not_answer_are_an_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OFF)
    folder = _saved(tmp_path, *BROKEN[name])
    assert not _answers(folder)
    found = _checked(folder)
    assert [(item.id, item.severity) for item in found.findings] == [("HS504", "error")]
    assert sorted(found.findings[0].parameters) == _faults(folder)


@pytest.mark.parametrize("name", HEALTHY)
def test_numbers_with_which_it_answers_are_silent(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OFF)
    folder = _saved(tmp_path, *HEALTHY[name])
    assert _answers(folder)
    found = _checked(folder)
    assert (found.findings, found.not_determined, found.verdict) == ((), (), "passed")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool])
def test_whole_numbers_without_a_scale_are_an_error_though_it_answers(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = _saved(tmp_path, changed(_QUERY, scaled(9.0, dtype)), "float32")
    assert _answers(folder)
    (found,) = headscope.check(str(folder), "inference", select="HS504", offline=True).findings
    assert found.severity == "error" and found.parameters == (_QUERY,)
    assert str(dtype).removeprefix("torch.") in found.message


@pytest.mark.parametrize("broken", [False, True])
def test_a_model_in_memory_and_an_adapter_are_judged_by_the_same_rule(broken: bool, tmp_path: Path) -> None:
    base = _saved(tmp_path / "base", *HEALTHY["as saved"])
    model = BertForSequenceClassification.from_pretrained(base)
    get_peft_model(model, LoraConfig(task_type="SEQ_CLS", target_modules=["query"])).save_pretrained(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    live = BertForSequenceClassification.from_pretrained(base)
    if broken:
        edit_tensors(file, _at(-1, next(name for name in load_file(file) if "lora_B" in name), float("nan")))
        live.bert.embeddings.word_embeddings.weight.data[-1, -1] = float("nan")
    for given in (str(tmp_path), live):
        found = headscope.check(given, "inference", select="HS504")
        assert [item.id for item in found.findings] == ["HS504"] * broken


def test_numbers_of_the_head_are_left_to_its_own_rule(tmp_path: Path) -> None:
    folder = _saved(tmp_path, _at(-1, "classifier.weight", float("nan")), "float32")
    for given in (str(folder), BertForSequenceClassification.from_pretrained(folder)):
        found = headscope.check(given, "inference", select="HS501,HS504")
        assert [item.id for item in found.findings] == ["HS501"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [0, 500, -1])
def test_a_broken_number_is_seen_in_any_block(
    at: int, number: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_tensors, "_BLOCK", 256)
    found = headscope.check(
        str(_saved(tmp_path, _at(at, _QUERY, number), "float32")), "inference", select="HS504", offline=True
    )
    assert [item.parameters for item in found.findings] == [(_QUERY,)]


def test_before_training_they_are_not_read(tmp_path: Path) -> None:
    folder = _saved(tmp_path, *BROKEN["NaN in the last number"])
    found = headscope.check(str(folder), "training", select="HS504", offline=True)
    assert (found.findings, [gap.rule for gap in found.not_applicable]) == ((), ["HS504"])


def test_zeros_are_found_whatever_the_class_was_chosen_by(tmp_path: Path) -> None:
    embeddings = _saved(tmp_path / "zeros", *BROKEN["embeddings of zeros"])
    known = _read(embeddings)
    assert sorted(known.zeros) == sorted(_EMBEDDINGS)
    assert _read(embeddings, choice=None) == known


def test_what_zeros_do_is_not_determined_where_the_model_was_not_run(tmp_path: Path) -> None:
    folder = _saved(tmp_path, *BROKEN["embeddings of zeros"])
    found = headscope.check(str(folder), "inference", select="HS504", offline=True, run=False)
    assert (found.findings, found.verdict) == ((), "not_determined")
    assert "was not run" in found.not_determined[0].reason


def test_zeros_beside_broken_numbers_are_not_looked_at_and_a_head_alone_holds_none(tmp_path: Path) -> None:
    whole = _read(_saved(tmp_path, *BROKEN["embeddings of zeros"]))
    edit_tensors(tmp_path / "model.safetensors", _at(-1, _QUERY, float("nan")))
    assert _read(tmp_path) == BaseNumbers(whole.tensors, (_QUERY,))
    edit_tensors(tmp_path / "model.safetensors", dropped("bert"))
    assert isinstance(_read(tmp_path), Gap)


def test_numbers_that_are_packed_or_elsewhere_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path, "fp8")
    plain = [
        key for key in load_file(folder / "model.safetensors") if "proj" not in key and not key.startswith("score")
    ]
    assert _read(folder).tensors == len(plain)
    elsewhere = SimpleNamespace(sidecar=SimpleNamespace(reads_cheaply=False))
    assert isinstance(_read(folder, stored_files=(elsewhere,)), Gap)


def test_of_a_model_in_memory_only_floats_that_are_there_are_judged(tmp_path: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(_saved(tmp_path, *HEALTHY["as saved"]))
    whole = live_base_numbers(model, headscope.inspect(model))
    assert (whole.broken, whole.zeros) == ((), ())
    report, norm = headscope.inspect(model), model.bert.encoder.layer[1].output.LayerNorm
    model.get_submodule(_QUERY.removesuffix(".weight")).weight = nn.Parameter(
        torch.ones(32, 32, dtype=torch.int8), requires_grad=False
    )
    norm.weight = nn.Parameter(norm.weight.to("meta"))
    assert live_base_numbers(model, report) == replace(whole, tensors=whole.tensors - 2)
    model.bert.embeddings.word_embeddings.weight = nn.Parameter(torch.empty(0, 32))
    empty = live_base_numbers(model, report)
    assert (empty.tensors, empty.zeros) == (whole.tensors - 2, _EMBEDDINGS[:1])


class _Plain(nn.Module):
    """A classifier that is not one of Transformers, with zeros in a matrix and in a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.score = nn.Embedding(9, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.score(self.norm(self.embed(input_ids)).mean(1))
        return scores


@pytest.mark.parametrize("name", ["embed.weight", "norm.bias"])
def test_zeros_of_a_model_of_another_library_are_matrices_alone(name: str) -> None:
    model = _Plain()
    nn.init.zeros_(model.get_parameter(name))
    report = headscope.inspect(model, example_inputs={"input_ids": torch.ones(2, 5, dtype=torch.int)})
    found = live_base_numbers(model, report)
    zeros = (name,) if model.get_parameter(name).dim() > 1 else ()
    assert (found.broken, found.zeros) == ((), zeros)
