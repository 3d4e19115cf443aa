"""The base model's numbers: what the loader makes of a file, and what the loaded model then answers, is the truth."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

import headscope
from headscope.examination.evidence import stored_tensors

State = dict[str, torch.Tensor]
_QUERY = "bert.encoder.layer.1.attention.self.query.weight"
_NORM = "bert.encoder.layer.1.output.LayerNorm"
_SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 40,
}


def _filled(value: float, *names: str) -> Callable[[State], None]:
    def edit(state: State) -> None:
        for name in names:
            state[name] = torch.full_like(state[name], value)

    return edit


def _at_the_end(value: float, name: str) -> Callable[[State], None]:
    def edit(state: State) -> None:
        state[name].view(-1)[-1] = value

    return edit


def _in_float8(state: State) -> None:
    state[_QUERY] = state[_QUERY].to(torch.float8_e4m3fn)


def _all_zeros(state: State) -> None:
    for name, value in state.items():
        if not name.startswith("classifier"):
            state[name] = torch.zeros_like(value)


_EMBEDDINGS = tuple(f"bert.embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type"))
BROKEN: dict[str, tuple[Callable[[State], None], str]] = {
    "NaN in the last number": (_at_the_end(float("nan"), _QUERY), "float32"),
    "infinity in the last number": (_at_the_end(float("inf"), "bert.embeddings.word_embeddings.weight"), "float32"),
    "negative infinity in a bias": (_at_the_end(float("-inf"), f"{_NORM}.bias"), "float32"),
    "beyond float16": (_at_the_end(70_000.0, _QUERY), "float16"),
    "below float16": (_at_the_end(-70_000.0, _QUERY), "float16"),
    "zeros throughout": (_all_zeros, "float32"),
    "a last norm of zeros": (_filled(0.0, f"{_NORM}.weight", f"{_NORM}.bias"), "float32"),
    "embeddings of zeros": (_filled(0.0, *_EMBEDDINGS), "float32"),
    "scales of zeros": (_filled(0.0, f"{_NORM}.weight"), "float32"),
}
HEALTHY: dict[str, tuple[Callable[[State], None], str]] = {
    "as saved": (lambda state: None, "float32"),
    "in float16": (lambda state: None, "float16"),
    "large, and within float16": (_at_the_end(65_000.0, "bert.embeddings.position_embeddings.weight"), "float16"),
    "a matrix in float8": (_in_float8, "float32"),
    "biases of zeros": (_filled(0.0, f"{_NORM}.bias", "bert.pooler.dense.bias"), "float32"),
    "one query of zeros": (_filled(0.0, _QUERY), "float32"),
    "one layer's values of zeros": (_filled(0.0, _QUERY.replace("query", "value")), "float32"),
}


def _saved(folder: Path, edit: Callable[[State], None], dtype: str) -> Path:
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**_SIZES, num_labels=3, dtype=dtype, initializer_range=0.2))
    folder.mkdir(exist_ok=True)
    model.config.save_pretrained(folder)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    edit(state)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return folder


def _answers(folder: Path) -> bool:
    """Whether the scores are finite, and their order depends on the words."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").float().eval()
    with torch.no_grad():
        scores = model(torch.randint(0, 50, (64, 8), generator=torch.Generator().manual_seed(1))).logits
    if not scores.isfinite().all():
        return False
    apart = scores - scores.mean(1, keepdim=True)
    return bool((apart - apart[:1]).abs().max() > 1e-5)


@pytest.mark.parametrize("name", BROKEN)
def test_numbers_with_which_the_model_can_not_answer_are_an_error(name: str, tmp_path: Path) -> None:
    folder = _saved(tmp_path, *BROKEN[name])
    assert not _answers(folder)
    found = headscope.check(str(folder), "inference", select="HS504", offline=True)
    assert [(item.id, item.severity) for item in found.findings] == [("HS504", "error")]


@pytest.mark.parametrize("name", HEALTHY)
def test_numbers_with_which_it_answers_are_silent(name: str, tmp_path: Path) -> None:
    folder = _saved(tmp_path, *HEALTHY[name])
    assert _answers(folder)
    found = headscope.check(str(folder), "inference", select="HS504", offline=True)
    assert (found.findings, found.not_determined, found.verdict) == ((), (), "passed")


@pytest.mark.parametrize("broken", [False, True])
def test_a_model_in_memory_and_an_adapter_are_judged_by_the_same_rule(broken: bool, tmp_path: Path) -> None:
    base = _saved(tmp_path / "base", *HEALTHY["as saved"])
    model = BertForSequenceClassification.from_pretrained(base)
    get_peft_model(model, LoraConfig(task_type="SEQ_CLS", target_modules=["query"])).save_pretrained(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    state = load_file(file)
    live = BertForSequenceClassification.from_pretrained(base)
    if broken:
        _at_the_end(float("nan"), next(name for name in state if "lora_B" in name))(state)
        save_file(state, file, {"format": "pt"})
        live.bert.embeddings.word_embeddings.weight.data[-1, -1] = float("nan")
    for given in (str(tmp_path), live):
        found = headscope.check(given, "inference", select="HS504")
        assert [item.id for item in found.findings] == ["HS504"] * broken


def test_numbers_of_the_head_are_left_to_its_own_rule(tmp_path: Path) -> None:
    folder = _saved(tmp_path, _at_the_end(float("nan"), "classifier.weight"), "float32")
    for given in (str(folder), BertForSequenceClassification.from_pretrained(folder)):
        found = headscope.check(given, "inference", select="HS501,HS504")
        assert [item.id for item in found.findings] == ["HS501"]


@pytest.mark.parametrize("at", [0, 500, -1])
def test_a_broken_number_is_seen_in_any_block(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(state: State) -> None:
        state[_QUERY].view(-1)[at] = float("nan")

    monkeypatch.setattr(stored_tensors, "_BLOCK", 256)
    found = headscope.check(str(_saved(tmp_path, edit, "float32")), "inference", select="HS504", offline=True)
    assert [item.parameters for item in found.findings] == [(_QUERY,)]


def test_before_training_they_are_not_read(tmp_path: Path) -> None:
    folder = _saved(tmp_path, *BROKEN["NaN in the last number"])
    found = headscope.check(str(folder), "training", select="HS504", offline=True)
    assert (found.findings, [gap.rule for gap in found.not_applicable]) == ((), ["HS504"])
