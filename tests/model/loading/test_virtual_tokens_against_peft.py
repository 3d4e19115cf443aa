"""Adapters that give a model virtual tokens, as PEFT saves, loads and runs them: which positions the scores read."""

import inspect
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

import headscope
from headscope.errors import HeadscopeError
from headscope.facts import PoolingKind, Where
from tests.edits import edit_tensors
from tests.families import FAMILIES
from tests.scorers import WORDS, save_language_model, save_tokenizer

_VIRTUAL, _LENGTH, _REAL = 5, 9, 6
_IDS = {"vocab_size": len(WORDS), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "num_labels": 3}
CONFIGS = {
    name: FAMILIES[name].build_config(**_IDS)
    for name in ("bert", "roberta", "distilbert", "gpt2", "llama", "qwen2", "bart", "t5")
}
_SIZES = {"token_dim": 32, "num_layers": 2, "num_attention_heads": 4}  # PEFT doesn't read those of DistilBERT
METHODS: dict[str, tuple[Any, dict[str, int]]] = {
    "prompt": (peft.PromptTuningConfig, {"num_virtual_tokens": _VIRTUAL}),
    "ptuning": (peft.PromptEncoderConfig, {"num_virtual_tokens": _VIRTUAL, "encoder_hidden_size": 16}),
    "prefix": (peft.PrefixTuningConfig, {"num_virtual_tokens": _VIRTUAL}),
    "multitask": (peft.MultitaskPromptTuningConfig, {"num_virtual_tokens": _VIRTUAL, "num_tasks": 2}),
    "adaption": (peft.AdaptionPromptConfig, {"adapter_len": 5, "adapter_layers": 1}),
}
_IS_PREFIXED = "past_key_values" in inspect.signature(transformers.GPT2ForSequenceClassification.forward).parameters
"""Whether PEFT can give a prefix to classifiers: since Transformers 5.24 they don't name the parameter it looks for."""
_PREFIXED = [(family, "prefix") for family in ("bert", "roberta", "gpt2", "llama")]
_RUNNING = [
    *product(("bert", "roberta", "distilbert", "gpt2", "llama"), ("prompt", "ptuning", "multitask")),
    *(("gpt2", "adaption"), ("llama", "adaption"), ("qwen2", "prompt")),
    *(_PREFIXED if _IS_PREFIXED else ()),
]
_REFUSED = [("bart", "prompt"), ("distilbert", "prefix"), *(() if _IS_PREFIXED else _PREFIXED)]


def _saved(family: str, method: str, root: Path, task: str = "SEQ_CLS", dtype: torch.dtype = torch.float32) -> Path:
    """An adapter that PEFT made and saved, with random weights, its base model and its tokenizer."""
    torch.manual_seed(0)
    auto = {
        "SEQ_CLS": transformers.AutoModelForSequenceClassification,
        "TOKEN_CLS": transformers.AutoModelForTokenClassification,
    }[task]
    base, folder = root / "base", root / "adapter"
    auto.from_config(CONFIGS[family]).to(dtype).save_pretrained(base)
    sizes = _SIZES if family == "distilbert" and method != "adaption" else {}
    kind, settings = METHODS[method]
    adapted = peft.get_peft_model(auto.from_pretrained(base), kind(task_type=task, **settings, **sizes))
    with torch.no_grad():
        for name, item in adapted.named_parameters():
            if item.requires_grad or "prompt" in name:
                item.normal_(std=0.5)
    adapted.save_pretrained(folder)
    for place in (base, folder):
        save_tokenizer(place, is_framed=family not in ("gpt2", "llama", "qwen2"), model_max_length=64)
    return folder


def _loaded(folder: Path, auto: Any = transformers.AutoModelForSequenceClassification) -> Any:
    return peft.PeftModel.from_pretrained(auto.from_pretrained(folder.parent / "base"), str(folder)).eval()


def _batch(adapted: Any) -> dict[str, torch.Tensor]:
    """A whole text, and one that is padded on its right; the first task where there are several."""
    ids = torch.arange(2 * _LENGTH).reshape(2, _LENGTH) % 50 + 8
    mask = torch.ones_like(ids)
    ids[1, _REAL:], mask[1, _REAL:] = 0, 0
    several = {"task_ids": torch.zeros(2, dtype=torch.long)} if hasattr(adapted.active_peft_config, "num_tasks") else {}
    return {"input_ids": ids, "attention_mask": mask, **several}


def _positions_by_gradient(adapted: Any) -> tuple[list[list[int]], int]:
    """The positions of the last hidden states that move the scores of each text, and how many there are."""
    kept: list[torch.Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> Any:
        output.last_hidden_state.requires_grad_(True)
        output.last_hidden_state.retain_grad()
        kept.append(output.last_hidden_state)
        return output

    base = adapted.get_base_model()
    inner = getattr(base, base.base_model_prefix)
    pooler = getattr(inner, "pooler", None)
    if pooler is not None:  # its input is what the pooler reads, and the head begins there
        pooler.register_forward_pre_hook(lambda module, args: kept.append(args[0]) or args[0].retain_grad())
    else:
        inner.register_forward_hook(keep)
    adapted.requires_grad_(True)
    adapted(**_batch(adapted)).logits.sum(0).pow(2).sum().backward()
    moved = kept[0].grad.abs().sum(-1) > 0
    return [row.nonzero().flatten().tolist() for row in moved], moved.shape[1]


def _positions_told(head: Any, length: int) -> list[list[int]]:
    ahead = head.virtual_tokens
    assert length == _LENGTH + ahead
    positions = head.pooling.parts[0].positions
    if positions.where is Where.INDEX:
        return [[positions.index % length]] * 2
    assert positions.where is Where.LAST_NON_PAD
    return [[length - 1], [ahead + _REAL - 1]]


@pytest.mark.parametrize(("family", "method"), _RUNNING)
def test_positions_are_those_that_move_the_scores_of_peft(family: str, method: str, tmp_path: Path) -> None:
    folder = _saved(family, method, tmp_path)
    head = headscope.inspect(folder).head
    adapted = _loaded(folder)
    live = headscope.inspect(adapted).head
    found, length = _positions_by_gradient(adapted)
    assert head is not None and live is not None
    assert _positions_told(head, length) == found
    assert (live.pooling.rule, live.virtual_tokens) == (head.pooling.rule, head.virtual_tokens)
    assert head.verification is None or head.verification.agrees


@pytest.mark.parametrize(
    ("family", "method"),
    [*_PREFIXED[: 1 if _IS_PREFIXED else 0], ("bert", "prompt"), ("gpt2", "prompt"), ("llama", "multitask")],
)
def test_scores_of_texts_are_those_of_peft(family: str, method: str, tmp_path: Path) -> None:
    folder = _saved(family, method, tmp_path)
    texts = ["w1 w2 w3", "w9"]
    given = transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    adapted = _loaded(folder)
    tasks = {"task_ids": torch.zeros(2, dtype=torch.long)} if method == "multitask" else {}
    with torch.no_grad():
        wanted = adapted(**given, **tasks).logits
    found = headscope.forward(folder, device="cpu", text=texts)
    assert torch.allclose(torch.tensor(found.logits), wanted, atol=1e-5)
    assert found.hidden_shape[1] == headscope.inspect(folder).head.virtual_tokens + given["input_ids"].shape[1]


@pytest.mark.parametrize(("family", "method"), _REFUSED)
def test_what_peft_can_not_call_has_no_head_and_fails(family: str, method: str, tmp_path: Path) -> None:
    folder = _saved(family, method, tmp_path)
    with pytest.raises((NotImplementedError, RuntimeError, ValueError)):
        adapted = _loaded(folder)
        adapted(**_batch(adapted))
    result = headscope.check(folder, "inference", run=True)
    assert result.report.head is None and result.verdict == "failed"
    assert "HS521" in {item.id for item in result.findings}


def test_an_encoder_reads_a_virtual_token_and_its_texts_are_shorter(tmp_path: Path) -> None:
    folder = _saved("bert", "prompt", tmp_path)
    result = headscope.check(folder, "inference")
    head, found = result.report.head, {item.id: item for item in result.findings}
    assert head.pooling.kind is PoolingKind.FIRST_TOKEN and "virtual token" in head.pooling.rule
    assert "CLS" not in head.formula and "v0" in str(result.report)
    assert "HS529" not in found and "HS303" not in found
    assert "5 virtual tokens" in found["HS308"].message and "= 59," in found["HS308"].remedy
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.model_max_length = 59
    tokenizer.save_pretrained(folder)
    again = headscope.check(folder, "inference", run=True)
    assert not {"HS308", "HS528"} & {item.id for item in again.findings} and again.verdict == "passed"


def test_padding_of_a_decoder_is_found_where_the_class_can_not_see_it(tmp_path: Path) -> None:
    folder = _saved("llama", "prompt", tmp_path / "prompt")
    found = {item.id for item in headscope.check(folder, "inference", run=True).findings}
    assert {"HS303", "HS525"} <= found
    prefix = _saved("llama", "prefix", tmp_path / "prefix")
    assert not {"HS303", "HS305", "HS525"} & {item.id for item in headscope.check(prefix, "inference").findings}


def test_word_embeddings_that_peft_looks_up_itself_count_for_the_scores(tmp_path: Path) -> None:
    folder = _saved("bert", "prompt", tmp_path)
    name = "bert.embeddings.word_embeddings.weight"
    head = headscope.inspect(folder).head
    assert not head.unused_modules and name not in head.not_live
    file = tmp_path / "base" / "model.safetensors"
    edit_tensors(file, lambda state: {key: item for key, item in state.items() if key != name})
    found = {item.id: item for item in headscope.check(folder, "inference", run=False).findings}
    assert name in found["HS101"].parameters


def test_a_half_precision_base_with_a_prompt_is_read_and_run(tmp_path: Path) -> None:
    folder = _saved("gpt2", "prompt", tmp_path, dtype=torch.float16)
    result = headscope.check(folder, "inference")
    assert result.report.head.pooling.kind is PoolingKind.LAST_TOKEN
    assert "HS521" not in {item.id for item in result.findings}


def test_each_virtual_token_of_a_tagger_has_scores_too(tmp_path: Path) -> None:
    folder = _saved("bert", "prompt", tmp_path, task="TOKEN_CLS")
    head = headscope.inspect(folder).head
    adapted = _loaded(folder, transformers.AutoModelForTokenClassification)
    assert head.pooling.kind is PoolingKind.NONE
    assert adapted(**_batch(adapted)).logits.shape[1] == _LENGTH + head.virtual_tokens


def _lora(root: Path, auto: Any, config: Any, **settings: Any) -> Path:
    base = root / "base"
    auto.from_config(config).save_pretrained(base)
    adapted = peft.get_peft_model(auto.from_pretrained(base), peft.LoraConfig(**settings))
    adapted.save_pretrained(root / "adapter")
    return root / "adapter"


_MODELS = {
    "causal": (transformers.AutoModelForCausalLM, CONFIGS["llama"], {"task_type": "CAUSAL_LM"}),
    "causal-lm-head": (
        transformers.AutoModelForCausalLM,
        CONFIGS["llama"],
        {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "lm_head"]},
    ),
    "causal-saves-embeddings": (
        transformers.AutoModelForCausalLM,
        CONFIGS["llama"],
        {"task_type": "CAUSAL_LM", "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    ),
    "seq2seq": (transformers.AutoModelForSeq2SeqLM, CONFIGS["t5"], {"task_type": "SEQ_2_SEQ_LM"}),
    "features": (transformers.AutoModel, CONFIGS["bert"], {"task_type": "FEATURE_EXTRACTION"}),
    "no-task": (transformers.AutoModelForCausalLM, CONFIGS["llama"], {"target_modules": ["q_proj"]}),
}


@pytest.mark.parametrize("name", _MODELS)
def test_an_adapter_of_a_language_model_has_one_finding_that_says_so(name: str, tmp_path: Path) -> None:
    auto, config, settings = _MODELS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = _lora(tmp_path, auto, config, **settings)
    report = headscope.inspect(folder)
    found = [item for item in report.findings if item.severity == "error"]
    assert [item.id for item in found] == ["HS107"] and "holds no classifier" in found[0].message
    assert report.adapter.own_class and not report.adapter.faults


def _of_llama(root: Path, config: Any) -> Any:
    """An adapter of a language model with a tokenizer."""
    adapted = peft.get_peft_model(save_language_model("Llama", root / "base"), config)
    adapted.peft_config["default"].base_model_name_or_path = str(root / "base")
    adapted.save_pretrained(str(root / "adapter"))
    return adapted


@pytest.mark.parametrize("has_own", [True, False])
def test_tokens_of_an_adapter_are_those_of_its_tokenizer_or_of_its_base(has_own: bool, tmp_path: Path) -> None:
    adapted = _of_llama(tmp_path, peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False))
    if has_own:
        save_tokenizer(tmp_path / "adapter")
    report = headscope.inspect(tmp_path / "adapter", tokens="no,yes")
    assert report.head is not None and report.head.formula == "logits = lm_head[[no, yes]](h[-1])"
    with torch.no_grad():
        logits = adapted.eval()(input_ids=torch.tensor([[10, 11]])).logits[0, -1, [4, 5]]
    shown = headscope.forward(tmp_path / "adapter", tokens="no,yes", device="cpu", text="w4 w5").logits
    torch.testing.assert_close(torch.tensor(shown).flatten(), logits)


def test_a_prompt_of_a_method_for_language_models_alone(tmp_path: Path) -> None:
    masks = {"cpt_mask": [1, 1, 1], "cpt_tokens_type_mask": [1, 2, 3]}
    _of_llama(tmp_path, peft.CPTConfig(task_type="CAUSAL_LM", cpt_token_ids=[5, 6, 7], **masks))
    found = headscope.check(tmp_path / "adapter", "inference").findings
    assert [item.id for item in found if item.severity == "error"] == ["HS107"]
    assert "score.weight" in found[0].message


def test_a_classifier_asked_for_has_the_layers_of_a_language_models_adapter(tmp_path: Path) -> None:
    auto, config, settings = _MODELS["causal"]
    report = headscope.inspect(_lora(tmp_path, auto, config, **settings), num_labels=3)
    assert not report.adapter.faults and report.model.num_labels == 3
    changed = [item.name for item in report.weights.parameters if item.adapter == "adapted"]
    assert len(changed) == 4 and all(name.endswith(("q_proj.weight", "v_proj.weight")) for name in changed)


def test_a_damaged_adapter_of_a_language_model_is_held_against_its_own_class(tmp_path: Path) -> None:
    auto, config, settings = _MODELS["causal"]
    folder = _lora(tmp_path, auto, config, **settings)
    edit_tensors(folder / "adapter_model.safetensors", lambda state: dict(list(state.items())[1:]))
    assert {"HS107", "HS109"} <= {item.id for item in headscope.inspect(folder).findings}


def test_several_adapters_are_named_with_how_to_choose_one(tmp_path: Path) -> None:
    base = tmp_path / "base"
    transformers.AutoModelForSequenceClassification.from_config(CONFIGS["bert"]).save_pretrained(base)
    made = transformers.AutoModelForSequenceClassification.from_pretrained(base)
    settings = {"task_type": "SEQ_CLS", "base_model_name_or_path": str(base)}
    adapted = peft.get_peft_model(made, peft.LoraConfig(**settings))
    for name in ("reward", "style"):
        adapted.add_adapter(name, peft.LoraConfig(**settings))
    adapted.save_pretrained(tmp_path / "two", selected_adapters=["reward", "style"])
    adapted.save_pretrained(tmp_path / "one", selected_adapters=["reward"])
    for folder, names in ((tmp_path / "two", ("reward", "style")), (tmp_path / "one", ("reward",))):
        with pytest.raises(ValueError, match=r"adapter_config\.json"):
            peft.PeftModel.from_pretrained(made, str(folder))
        with pytest.raises(HeadscopeError) as raised:
            headscope.inspect(folder)
        told = f"{raised.value.message} {raised.value.hint} {getattr(raised.value.state, 'remedy', '')}"
        told += str(getattr(raised.value.state, "repair", ""))
        assert "adapters" in told and all(name in told for name in names) and "--subfolder reward" in told
        assert headscope.inspect(folder, subfolder="reward").adapter.saved
        assert headscope.inspect(folder / "reward").adapter.saved
