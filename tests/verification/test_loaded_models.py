"""`verify` on models that were really loaded, really changed, really merged: the numbers are read here with safetensors
and compared with `torch.equal`, and every fault is made.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from families import FAMILIES
from safetensors.torch import load_file, save_file
from saving import FORMATS
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MixtralConfig,
    MixtralForSequenceClassification,
)

import headscope
from headscope.errors import NotFound, Unsupported, UsageError
from headscope.facts.results.check import Verdict
from headscope.facts.results.verification import Scope, TensorStatus
from tests.model.test_quantized import PACKINGS
from tests.model.test_quantized import save as quantized
from tests.verification.tiny import TINY, adapted, ids

S = TensorStatus


def statuses(result: Any) -> dict[str, TensorStatus]:
    return {item.name: item.status for item in result.tensors}


def counts(result: Any) -> dict[str, int]:
    return dict(Counter(item.status.value for item in result.tensors))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "bert"
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained(folder)
    return folder


def loaded(folder: Path, **options: Any) -> BertForSequenceClassification:
    return BertForSequenceClassification.from_pretrained(folder, **options)


# What is healthy raises no alarm.

OWN_CLASS = [(name, saved_as) for name in FAMILIES for saved_as in FORMATS]


@pytest.mark.parametrize(("family_name", "saved_as"), OWN_CLASS, ids=str)
def test_a_load_of_a_whole_save_is_equal(family_name: str, saved_as: str, tmp_path: Path) -> None:
    family = FAMILIES[family_name]
    FORMATS[saved_as](family.build(family.classifier), tmp_path)
    model = getattr(transformers, family.classifier).from_pretrained(tmp_path)
    result = headscope.verify(model, tmp_path)
    assert result.verdict is Verdict.PASSED, (result.findings, result.not_determined)
    assert not result.findings
    assert set(counts(result)) <= {"equal", "tied", "computed", "transformed"}
    own = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    assert own <= set(statuses(result))
    assert result.scope == Scope(len(result.tensors), len(result.tensors))
    stored = {id(item): item.nbytes for item in model.state_dict(keep_vars=True).values()}
    assert result.bytes_read >= sum(stored.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_is_named_with_its_largest_error(saved: Path, dtype: torch.dtype) -> None:
    result = headscope.verify(loaded(saved, dtype=dtype), saved, head=True)
    stored = load_file(saved / "model.safetensors")
    assert counts(result) == {"cast": 3, "equal": 1} or counts(result) == {"cast": 4}
    for item in result.tensors:
        lost = (stored[item.name].double() - stored[item.name].to(dtype).double()).abs().max()
        assert item.max_error == pytest.approx(float(lost), abs=1e-12)
    assert result.verdict is Verdict.PASSED


def test_shards_and_pieces_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headscope.model.tensors import numbers

    monkeypatch.setattr(numbers, "PIECE", 100)
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained(tmp_path, max_shard_size="40kB")
    model = loaded(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert headscope.verify(model, tmp_path).verdict is Verdict.PASSED
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[-1, -1] += 1
    result = headscope.verify(model, tmp_path)
    assert ids(result) == ["HS705"]
    assert result.findings[0].parameters == ("bert.embeddings.word_embeddings.weight",)


def test_no_header_is_parsed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headscope.checkpoints.formats import safetensors_header

    parsed: list[str] = []
    parse = safetensors_header._header_text
    monkeypatch.setattr(safetensors_header, "_header_text", lambda source: parsed.append(source.name) or parse(source))
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained(tmp_path, max_shard_size="40kB")
    shards = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    looks: tuple[tuple[Callable[[], object], int], ...] = (
        (lambda: headscope.verify(loaded(tmp_path), tmp_path), 1),
        (lambda: headscope.verify_save(loaded(tmp_path), tmp_path), 1),
        (lambda: headscope.compare(str(tmp_path), str(tmp_path), values=True), 2),
    )
    for look, times in looks:
        parsed.clear()
        look()
        assert sorted(parsed) == sorted(shards * times)


@pytest.mark.parametrize("look", [headscope.verify, headscope.verify_save], ids=["verify", "verify_save"])
def test_the_model_stays_as_it_is(look: Callable[..., Any], saved: Path) -> None:
    model = loaded(saved).train()
    before = {name: item.clone() for name, item in model.state_dict().items()}
    state = torch.get_rng_state()
    look(model, saved)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(item, before[name]) for name, item in model.state_dict().items())


# Each fault is made, and caught.


def test_the_largest_error_is_that_of_the_numbers(saved: Path) -> None:
    model = loaded(saved)
    with torch.no_grad():
        model.classifier.weight += torch.tensor([[0.5], [-0.25]])
    (item,) = (item for item in headscope.verify(model, saved).tensors if item.status is S.DIFFERENT)
    assert item.max_error == pytest.approx(0.5, rel=1e-5)


def test_a_base_model_that_changed_is_seen_unless_the_head_alone_is_wanted(saved: Path) -> None:
    model = loaded(saved)
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight += 1
    part = headscope.verify(model, saved, head=True)
    assert (part.verdict, part.scope) == (Verdict.PASSED, Scope(43, 4, head_only=True))
    assert ": 4 of 43 tensors" in str(part)
    whole = headscope.verify(model, saved)
    assert (ids(whole), whole.scope) == (["HS705"], Scope(43, 43))


@pytest.mark.parametrize("source", ["mlm", "base"])
def test_a_head_that_the_checkpoint_lacks_is_random(source: str, tmp_path: Path) -> None:
    whole = BertForMaskedLM(BertConfig(**TINY))
    (whole if source == "mlm" else whole.bert).save_pretrained(tmp_path)
    model, info = BertForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    result = headscope.verify(model, tmp_path)
    assert {item.name for item in result.tensors if item.status is S.RANDOM} == set(info["missing_keys"])
    assert {item.name for item in result.tensors if item.status is S.DROPPED} == set(info["unexpected_keys"])
    assert ids(result) == ["HS702"]  # the heads of pretraining are dropped in every such load


@pytest.mark.parametrize("cls", [BertModel, BertForTokenClassification], ids=lambda cls: cls.__name__)
def test_a_trained_head_that_the_class_has_no_place_for_is_dropped(saved: Path, cls: Any) -> None:
    model, info = cls.from_pretrained(saved, output_loading_info=True)
    result = headscope.verify(model, saved)
    assert {item.name for item in result.tensors if item.status is S.DROPPED} == set(info["unexpected_keys"])
    assert "HS703" in ids(result)


def test_computed_buffers_are_computed_again(tmp_path: Path) -> None:
    config = LlamaConfig(**TINY, num_labels=3)
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    model = LlamaForSequenceClassification.from_pretrained(tmp_path)
    assert counts(headscope.verify(model, tmp_path))["computed"] == 2
    model.model.rotary_emb.inv_freq *= 2
    result = headscope.verify(model, tmp_path)
    assert ids(result) == ["HS705"]
    assert result.findings[0].parameters == ("model.rotary_emb.inv_freq",)


def test_tensors_that_the_loader_fuses_are_converted_again(tmp_path: Path) -> None:
    config = MixtralConfig(**TINY, num_key_value_heads=2, num_local_experts=4)
    MixtralForSequenceClassification(config).save_pretrained(tmp_path)
    keys = load_file(tmp_path / "model.safetensors")
    assert "model.layers.0.block_sparse_moe.experts.3.w1.weight" in keys
    model = MixtralForSequenceClassification.from_pretrained(tmp_path)
    result = headscope.verify(model, tmp_path)
    assert counts(result)["transformed"] == 4
    assert result.verdict is Verdict.PASSED
    with torch.no_grad():
        model.model.layers[1].mlp.experts.down_proj[2, 0, 0] += 1
    result = headscope.verify(model, tmp_path)
    changed = [item.name for item in result.tensors if item.status is S.DIFFERENT]
    assert changed == ["model.layers.1.mlp.experts.down_proj"]


def test_a_head_that_is_tied_no_longer_is_compared(tmp_path: Path) -> None:
    LlamaForCausalLM(LlamaConfig(**TINY, tie_word_embeddings=True)).save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    model = LlamaForCausalLM.from_pretrained(tmp_path)
    assert headscope.verify(model, tmp_path).verdict is Verdict.PASSED
    model.lm_head.weight = nn.Parameter(model.lm_head.weight + 1)
    result = headscope.verify(model, tmp_path)
    assert ids(result) == ["HS701"]
    assert result.findings[0].parameters == ("lm_head.weight",)


def test_a_head_that_is_no_parameter_has_lost_its_numbers(saved: Path) -> None:
    model = loaded(saved)
    weight = model.classifier.weight.detach() + 1
    del model.classifier.weight
    model.classifier.weight = weight
    result = headscope.verify(model, saved)
    assert ids(result) == ["HS703"]
    assert result.findings[0].parameters == ("classifier.weight",)


# Adapters.


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "gpt2"
    config = GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=99, pad_token_id=0)
    GPT2ForSequenceClassification(config).save_pretrained(folder)
    return folder


LORA = [
    {"target_modules": ["query", "value"]},
    {"target_modules": ["query"], "use_rslora": True},
    {"target_modules": ["query", "key"], "alpha_pattern": {"key": 3}, "rank_pattern": {"key": 2}},
    {"target_modules": ["word_embeddings", "value"]},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", LORA, ids=str)
def test_an_adapter_is_compared_merged_and_unmerged(
    saved: Path, options: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    adapter = adapted(tmp_path / "adapter", saved, **options)
    wrapped = peft.PeftModel.from_pretrained(loaded(saved, dtype=dtype), adapter)
    beside = headscope.verify(wrapped, saved, adapter=adapter)
    assert beside.verdict is Verdict.PASSED, beside.findings
    assert not {S.MERGED, S.DROPPED} & set(statuses(beside).values())
    merged = headscope.verify(wrapped.merge_and_unload(), saved, adapter=adapter)
    assert merged.verdict is Verdict.PASSED, merged.findings
    expected = {path for path, _ in loaded(saved).named_modules() if path.endswith(tuple(options["target_modules"]))}
    assert {item.name for item in merged.tensors if item.status is S.MERGED} == {f"{each}.weight" for each in expected}


def test_a_layer_that_is_stored_transposed_is_merged_so(gpt2: Path, tmp_path: Path) -> None:
    adapter = adapted(tmp_path / "a", gpt2, GPT2ForSequenceClassification, fan_in_fan_out=True)
    wrapped = peft.PeftModel.from_pretrained(GPT2ForSequenceClassification.from_pretrained(gpt2), adapter)
    result = headscope.verify(wrapped.merge_and_unload(), gpt2, adapter=adapter)
    assert counts(result) == {"merged": 2, "equal": 27}


@pytest.fixture(scope="module")
def query(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "query"
    return adapted(folder, saved, target_modules=["query"])


def disabled(model: Any) -> None:
    model.base_model.disable_adapter_layers()


def scaled(model: Any) -> None:
    model.base_model.model.bert.encoder.layer[0].attention.self.query.scaling["my-own"] *= 2


def two(model: Any) -> None:
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query"], modules_to_save=[])
    model.add_adapter("other", config)


def other(model: Any) -> None:
    two(model)
    model.set_adapter("other")


def merged_in_place(model: Any) -> None:
    model.merge_adapter()


HELD = [
    (lambda model: None, Verdict.PASSED),
    (two, Verdict.PASSED),
    (merged_in_place, Verdict.PASSED),
    (disabled, Verdict.NOT_DETERMINED),
    (scaled, Verdict.NOT_DETERMINED),
    (other, Verdict.FAILED),
]


@pytest.mark.parametrize(("change", "verdict"), HELD, ids=lambda item: getattr(item, "__name__", ""))
def test_an_adapter_that_is_held_must_also_be_used(
    saved: Path, query: Path, change: Callable[[Any], None], verdict: Verdict
) -> None:
    plain = peft.PeftModel.from_pretrained(loaded(saved), query).eval()
    model = peft.PeftModel.from_pretrained(loaded(saved), query, adapter_name="my-own").eval()
    change(model)
    tokens = torch.arange(9)[None]
    scores = [item(input_ids=tokens).logits for item in (plain, model)]
    assert torch.allclose(*scores, atol=1e-5) == (verdict is Verdict.PASSED)
    result = headscope.verify(model, saved, adapter=query)
    assert result.verdict is verdict, str(result)


METHODS = [
    peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4),
    peft.IA3Config(task_type="SEQ_CLS"),
    peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], bias="all"),
    peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], use_dora=True),
    peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], trainable_token_indices={"word_embeddings": [1]}),
    peft.LoHaConfig(task_type="SEQ_CLS", target_modules=["query"]),
    peft.PromptEncoderConfig(task_type="SEQ_CLS", num_virtual_tokens=4, encoder_hidden_size=8),
    peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4),
    peft.OFTConfig(task_type="SEQ_CLS", target_modules=["query"], oft_block_size=8, r=0),
    peft.BOFTConfig(task_type="SEQ_CLS", target_modules=["query"], boft_block_size=8),
    peft.VeraConfig(task_type="SEQ_CLS", target_modules=["query"]),
    peft.AdaLoraConfig(task_type="SEQ_CLS", target_modules=["query"], total_step=10),
]


@pytest.mark.parametrize("number", range(len(METHODS)))
def test_each_tensor_of_an_adapter_is_compared(saved: Path, number: int, tmp_path: Path) -> None:
    peft.get_peft_model(loaded(saved), METHODS[number]).save_pretrained(tmp_path)
    model = peft.PeftModel.from_pretrained(loaded(saved), tmp_path)
    for head in (False, True):
        result = headscope.verify(model, saved, adapter=tmp_path, head=head)
        assert (result.verdict, result.findings) == (Verdict.PASSED, ()), str(result)
    added = (
        "prompt_encoder", "lora_", "ia3_", "hada_", "trainable_tokens_delta", "oft_", "vera_", "modules_to_save",
    )  # fmt: skip
    parameters = [item for name, item in model.named_parameters() if any(part in name for part in added)]
    assert parameters
    with torch.no_grad():
        parameters[0] += 1
    assert headscope.verify(model, saved, adapter=tmp_path).verdict is Verdict.FAILED


@pytest.mark.parametrize("head", [False, True])
def test_an_adapter_that_is_not_named_is_not_determined(saved: Path, query: Path, head: bool) -> None:
    model = peft.PeftModel.from_pretrained(loaded(saved), query)
    model.base_model.model.classifier.modules_to_save.default.load_state_dict(loaded(saved).classifier.state_dict())
    result = headscope.verify(model, saved, head=head)
    assert (result.verdict, result.findings) == (Verdict.NOT_DETERMINED, ()), str(result)
    assert [gap.topic for gap in result.not_determined] == ["adapter"]
    unknown = {item.name for item in result.tensors if item.status is S.UNKNOWN}
    inside = dict(model.base_model.model.named_parameters())
    assert unknown == ({name for name in inside if ".lora_" in name} if not head else set())
    with torch.no_grad():
        inside["bert.pooler.dense.weight"] += 1
    assert ids(headscope.verify(model, saved, head=head)) == ["HS701"]


COMPUTED_BY_PEFT = [
    (METHODS[4], "trainable_tokens_original", "different"),
    (METHODS[8], "oft_R.default.rows", "different"),
    (METHODS[9], "boft_P", "different"),
    (METHODS[11], "ranknum.default", "different"),
]


@pytest.mark.parametrize(("config", "part", "status"), COMPUTED_BY_PEFT, ids=[item[1] for item in COMPUTED_BY_PEFT])
def test_what_peft_computes_is_computed_again(saved: Path, config: Any, part: str, status: str, tmp_path: Path) -> None:
    peft.get_peft_model(loaded(saved), config).save_pretrained(tmp_path)
    model = peft.PeftModel.from_pretrained(loaded(saved), tmp_path)
    inside = model.base_model.model
    named = dict(inside.named_buffers()) | dict(inside.named_parameters())
    name = next(name for name in named if part in name)
    assert name not in load_file(tmp_path / "adapter_model.safetensors")
    with torch.no_grad():
        named[name] += 1
    result = headscope.verify(model, saved, adapter=tmp_path)
    assert result.verdict is Verdict.FAILED
    assert statuses(result)[name].value == status


def test_a_merge_that_did_not_happen_is_caught(saved: Path, tmp_path: Path) -> None:
    adapter = adapted(tmp_path / "a", saved, target_modules=["query"])
    result = headscope.verify(loaded(saved), saved, adapter=adapter)
    assert set(ids(result)) == {"HS701", "HS705"}
    (query,) = (item for item in result.tensors if item.name == "bert.encoder.layer.0.attention.self.query.weight")
    assert "not merged" in query.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [1e-4, 2e-3, 0.05])
def test_a_small_change_that_short_numbers_lack_is_caught(
    saved: Path, dtype: torch.dtype, size: float, tmp_path: Path
) -> None:
    """The change is far below the rounding step of the largest weight, and not below that of most of them."""
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query"])
    model = peft.get_peft_model(loaded(saved), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=size)
    model.save_pretrained(tmp_path)
    merged = peft.PeftModel.from_pretrained(loaded(saved, dtype=dtype), tmp_path).merge_and_unload()
    whole = headscope.verify(merged, saved, adapter=tmp_path)
    assert (whole.verdict, counts(whole)["merged"]) == (Verdict.PASSED, 2), str(whole)
    plain = loaded(saved, dtype=dtype)
    plain.classifier = merged.classifier
    query = "bert.encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(plain.get_parameter(query), merged.get_parameter(query))
    result = headscope.verify(plain, saved, adapter=tmp_path)
    assert ids(result) == ["HS705"]
    assert "not merged" in next(item.reason for item in result.tensors if item.name == query)


def test_numbers_too_large_for_the_dtype_are_caught(tmp_path: Path) -> None:
    model = BertForSequenceClassification(BertConfig(**TINY))
    with torch.no_grad():
        model.classifier.weight[0, 0] = 1e5
    model.save_pretrained(tmp_path)
    assert loaded(tmp_path, dtype=torch.float16).classifier.weight.isinf().any()
    result = headscope.verify(loaded(tmp_path, dtype=torch.float16), tmp_path)
    assert ids(result) == ["HS701", "HS708"]
    assert "float16" in result.findings[0].message
    assert headscope.verify(loaded(tmp_path, dtype=torch.bfloat16), tmp_path).verdict is Verdict.PASSED


def test_a_merge_with_another_scale_is_caught(saved: Path, tmp_path: Path) -> None:
    adapter = adapted(tmp_path / "a", saved, target_modules=["query"])
    model = peft.PeftModel.from_pretrained(loaded(saved), adapter).merge_and_unload()
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"lora_alpha": 13}))
    assert ids(headscope.verify(model, saved, adapter=adapter)) == ["HS705"]


def test_a_method_whose_merge_is_not_known_is_not_determined(saved: Path, tmp_path: Path) -> None:
    adapter = adapted(tmp_path / "a", saved, target_modules=["query"], use_dora=True)
    model = peft.PeftModel.from_pretrained(loaded(saved), adapter).merge_and_unload()
    result = headscope.verify(model, saved, adapter=adapter)
    assert result.verdict is Verdict.NOT_DETERMINED
    assert "use_dora" in result.not_determined[0].reason


# What cannot be compared is never green; bad input is a sentence.


def test_a_model_without_numbers_is_not_determined(saved: Path) -> None:
    result = headscope.verify(loaded(saved, device_map="meta"), saved)
    assert result.verdict is Verdict.NOT_DETERMINED
    assert set(statuses(result).values()) == {S.UNKNOWN}


def test_packed_numbers_are_not_determined(saved: Path) -> None:
    model = loaded(saved)

    class Packed(torch.Tensor):
        pass

    weight = model.classifier.weight
    model.classifier.weight = nn.Parameter(weight.detach().as_subclass(Packed))  # type: ignore[arg-type]
    result = headscope.verify(model, saved)
    assert statuses(result)["classifier.weight"] is S.UNKNOWN
    assert result.verdict is Verdict.NOT_DETERMINED


@pytest.mark.parametrize("name", PACKINGS)
@pytest.mark.parametrize("is_told", [True, False])
def test_what_a_checkpoint_packs_is_not_determined_and_never_different(
    name: str, is_told: bool, tmp_path: Path
) -> None:
    folder = quantized(tmp_path, name)
    config = LlamaConfig.from_pretrained(folder)
    settings = config.quantization_config
    del config.quantization_config
    model = LlamaForSequenceClassification(config)
    stored = load_file(folder / "model.safetensors")
    model.load_state_dict({key: value for key, value in stored.items() if "proj" not in key}, strict=False)
    if is_told:
        model.config.quantization_config = settings
    result = headscope.verify(model, folder, head=True)
    lost = ids(result)  # the head is stored as it is; nothing in the model tells that what is left over was packed
    assert (result.verdict is Verdict.PASSED) if is_told or name in {"bnb8", "fp8"} else lost in ([], ["HS707"]), lost
    result = headscope.verify(model, folder)
    packed = {key: status for key, status in statuses(result).items() if "proj" in key and status is not S.DROPPED}
    if is_told or name in {"bnb8", "fp8"}:
        assert set(packed.values()) == {S.UNKNOWN}
        assert result.verdict is Verdict.NOT_DETERMINED
    else:  # nothing in the model says that it was packed, and no key bears the name of its weights
        assert result.verdict is not Verdict.PASSED


def test_another_class_and_other_shapes_fail(saved: Path, gpt2: Path) -> None:
    result = headscope.verify(loaded(saved), gpt2)
    assert result.verdict is Verdict.FAILED
    wide = BertForSequenceClassification(BertConfig(**TINY | {"hidden_size": 64}))
    result = headscope.verify(wide, saved)
    assert set(ids(result)) >= {"HS701"}
    assert statuses(result)["classifier.weight"] is S.DIFFERENT


def test_a_snapshot_holds_nothing_to_compare_with(saved: Path, tmp_path: Path) -> None:
    headscope.snapshot(saved, tmp_path / "s.json")
    with pytest.raises(Unsupported, match="weights"):
        headscope.verify(loaded(saved), tmp_path / "s.json")
    with pytest.raises(Unsupported, match=r"s.json is a snapshot"):
        headscope.verify(tmp_path / "s.json")


def test_a_checkpoint_that_is_gone_is_an_error(saved: Path) -> None:
    with pytest.raises(NotFound):
        headscope.verify(loaded(saved), saved / "nowhere")
    with pytest.raises(UsageError, match="checkpoint"):
        headscope.verify(loaded(saved))  # type: ignore[call-overload]


def test_a_file_that_changes_while_it_is_read_is_not_determined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained(tmp_path)
    model = loaded(tmp_path)
    from headscope.examination.stored import verification

    trace = verification.trace_checkpoint

    def change_and_trace(*given: Any) -> Any:
        save_file({"other": torch.ones(3)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return trace(*given)

    monkeypatch.setattr(verification, "trace_checkpoint", change_and_trace)
    result = headscope.verify(model, tmp_path)
    assert result.verdict is Verdict.NOT_DETERMINED
    assert "has changed" in result.not_determined[0].reason


def test_a_module_of_no_library_is_matched_by_its_names(saved: Path) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = loaded(saved)

        def forward(self, **given: Any) -> Any:
            return self.inner(**given)

    model = Wrapper()
    result = headscope.verify(model, saved)
    assert result.verdict is Verdict.PASSED, result
    assert "inner." in result.notes[0]
    with torch.no_grad():
        model.inner.classifier.weight += 1
    assert headscope.verify(model, saved).verdict is Verdict.FAILED


def test_what_is_dropped_from_a_checkpoint_of_no_named_class_is_not_determined(saved: Path, tmp_path: Path) -> None:
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "config.json").read_text())
    del settings["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    result = headscope.verify(BertModel.from_pretrained(tmp_path), tmp_path)
    assert result.verdict is Verdict.NOT_DETERMINED
    assert "no class" in result.not_determined[0].reason
    assert headscope.verify(loaded(tmp_path), tmp_path).verdict is Verdict.PASSED


def test_a_classifier_in_a_pickle_is_never_green(tmp_path: Path) -> None:
    BertModel(BertConfig(**TINY)).save_pretrained(tmp_path)
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    (tmp_path / "modules.json").write_text(json.dumps([module]))
    (tmp_path / "model_head.pkl").write_bytes(b"\x80\x04N.")
    result = headscope.verify(BertModel.from_pretrained(tmp_path), tmp_path)
    assert result.verdict is Verdict.NOT_DETERMINED
    assert result.not_determined[0].topic == "model_head.pkl"
