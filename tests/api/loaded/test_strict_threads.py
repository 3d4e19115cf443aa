"""`strict` in the situations of public threads, in which people asked why scores are random: each stops in one line.

Then loads of other kinds: several inputs, several heads, nothing loaded, a family's own default.

The links are in docs/recipes.md. The oracle is the loader's own list of missing keys, or, for adapters, the tensors in
the adapter's file.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForSequenceClassification as Auto
from transformers.modeling_outputs import SequenceClassifierOutput

import headscope
from headscope.errors import HeadNotLoaded, LoadNotJudged
from tests.api.loaded.lost import CLASSIFIER, POOLER, adapter, lost_in, without
from tests.edits import edit_json, edit_tensors
from tests.families import FAMILIES

PAGE = Path(__file__).parents[3] / "docs" / "recipes.md"


class SeveralHeads(transformers.BertPreTrainedModel):  # type: ignore[no-untyped-call]
    """A class of one's own, as people write it in a module of Lightning."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = transformers.BertModel(config)
        self.classifiers = nn.ModuleList(nn.Linear(config.hidden_size, 2) for _ in range(2))
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: Any = None, attention_mask: Any = None, **_: Any) -> SequenceClassifierOutput:
        pooled = self.bert(input_ids, attention_mask=attention_mask).pooler_output
        return SequenceClassifierOutput(logits=torch.cat([one(pooled) for one in self.classifiers], -1))


class QuietHead(SeveralHeads):  # type: ignore[no-untyped-call]
    """One that tells the loader not to mention its head."""

    _keys_to_ignore_on_load_missing = ["classifiers"]  # noqa: RUF012


class Reward(transformers.BertPreTrainedModel):  # type: ignore[no-untyped-call]
    """A model of rewards around a base model, as frameworks of RLHF write it."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = transformers.BertModel(config)
        self.value_head = nn.Linear(config.hidden_size, 1, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: Any = None, attention_mask: Any = None, **_: Any) -> torch.Tensor:
        hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        values: torch.Tensor = self.value_head(hidden)
        return values[:, -1]


@pytest.fixture(scope="module")
def made(saved: Path) -> Path:
    """Beside what is saved: a language model, classifiers whose keys a program changed, and adapters without a head."""
    folder = saved
    FAMILIES["llama"].build("LlamaForCausalLM").save_pretrained(folder / "lm")
    for name, prefix in (("unwrapped", "module."), ("other", "")):
        shutil.copytree(folder / "whole", folder / name)
        edit_tensors(
            folder / name / "model.safetensors",
            lambda state, prefix=prefix: {  # type: ignore[misc]
                prefix + key.replace("classifier", "head.out"): value for key, value in state.items()
            },
        )
    adapter(folder, folder / "bare")
    adapter(folder, folder / "full", task_type="SEQ_CLS")
    return folder


def _load_adapter(place: Path, base: Path, wrapper: Any = None, **options: Any) -> Any:
    model = Auto.from_pretrained(base, num_labels=2)
    if wrapper is not None:
        return wrapper.from_pretrained(model, str(place), **options)
    model.load_adapter(str(place), **options)
    return model


def _with_state(made: Path) -> Any:
    state = {name: value for name, value in load_file(made / "whole" / "model.safetensors").items() if "bert." in name}
    config = transformers.BertConfig.from_pretrained(made / "base")
    return transformers.BertForSequenceClassification.from_pretrained(None, config=config, state_dict=state)


HEADS = {f"classifiers.{number}.{kind}" for number in (0, 1) for kind in ("weight", "bias")}
THREADS: dict[str, tuple[Callable[[Path], Any], set[str] | None]] = {
    "huggingface/transformers#10329": (lambda made: Auto.from_pretrained(made / "other"), CLASSIFIER),
    "huggingface/transformers#32067": (lambda made: Auto.from_pretrained(made / "unwrapped"), None),
    "huggingface/transformers#5421": (lambda made: Auto.from_pretrained(made / "mlm"), CLASSIFIER | POOLER),
    "huggingface/transformers#3142": (
        lambda made: transformers.pipeline("text-classification", model=str(made / "base")), CLASSIFIER
    ),
    "huggingface/transformers#13358": (lambda made: SeveralHeads.from_pretrained(made / "base"), HEADS),
    "GAIR-NLP/ReasonEval#4": (lambda made: QuietHead.from_pretrained(made / "base"), HEADS),
    "huggingface/transformers#135": (_with_state, CLASSIFIER),
    "OpenRLHF/OpenRLHF#209": (lambda made: Reward.from_pretrained(made / "base"), {"value_head.weight"}),
    "dawoshi/meta-comprehensive-rag-benchmark-kdd-cup-2024#1": (
        lambda made: Auto.from_pretrained(made / "lm"), {"score.weight"}
    ),
    "huggingface/peft#310": (lambda made: peft.AutoPeftModel.from_pretrained(made / "bare"), CLASSIFIER),
    "huggingface/peft#876": (
        lambda made: _load_adapter(made / "bare", made / "base", peft.PeftModel).merge_and_unload(), CLASSIFIER
    ),
    "huggingface/transformers#26160": (lambda made: Auto.from_pretrained(made / "bare"), CLASSIFIER),
    "huggingface/peft#577": (lambda made: _load_adapter(made / "bare", made / "base"), CLASSIFIER),
    "huggingface/sentence-transformers#699": (
        lambda made: pytest.importorskip("sentence_transformers").CrossEncoder(str(made / "base")), CLASSIFIER
    ),
}  # fmt: skip


@pytest.mark.parametrize("thread", THREADS)
def test_the_situation_of_a_thread_is_stopped(thread: str, made: Path) -> None:
    load, lost = THREADS[thread]
    everything = {*FAMILIES["bert"].build("BertForSequenceClassification").state_dict()}
    assert lost_in(lambda: load(made)) == (lost or everything)


@pytest.mark.parametrize("name", ["whole", "full"])
def test_the_same_load_of_a_whole_save_passes(name: str, made: Path) -> None:
    assert lost_in(lambda: Auto.from_pretrained(made / name)) == set()


@pytest.mark.parametrize("wrapper", [None, peft.PeftModel, peft.PeftMixedModel])
def test_an_adapter_is_judged_when_its_load_ends(wrapper: Any, made: Path) -> None:
    with headscope.strict():
        _load_adapter(made / "full", made / "base", wrapper)
        _load_adapter(made / "bare", made / "whole", wrapper)
        with pytest.raises(HeadNotLoaded) as caught:
            _load_adapter(made / "bare", made / "base", wrapper)
    assert "modules_to_save=['classifier']" in caught.value.hint and "HS107" in caught.value.hint
    if wrapper is not peft.PeftMixedModel:  # which isn't loaded to be trained
        with headscope.strict():
            _load_adapter(made / "bare", made / "base", wrapper, is_trainable=True)


@pytest.mark.parametrize("part", ["classifier", "classifier.bias"])
def test_a_head_that_the_adapter_declares_and_lacks_is_not_given(part: str, made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "full", tmp_path / "lost")
    without(tmp_path / "lost", part, name="adapter_model.safetensors")
    with pytest.raises(HeadNotLoaded) as caught, headscope.strict():
        _load_adapter(tmp_path / "lost", made / "base")
    assert "neither the base model nor the adapter gives" in str(caught.value)
    lost = {name for name in CLASSIFIER if name.startswith(part)}
    assert lost_in(lambda: Auto.from_pretrained(tmp_path / "lost")) == {*caught.value.parameters} == lost


def test_a_configuration_given_by_its_place_says_the_classes_as_an_object_does(made: Path, tmp_path: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(made / "base")
    config.num_labels = 3
    config.save_pretrained(tmp_path)
    for given in (str(tmp_path), tmp_path, config):
        with headscope.strict():
            model = transformers.BertForSequenceClassification.from_pretrained(made / "base", config=given)
        assert model.config.num_labels == 3
    with pytest.raises(HeadNotLoaded), headscope.strict():
        transformers.BertForSequenceClassification.from_pretrained(made / "base", config=str(made / "base"))


def test_the_error_at_the_base_of_an_adapter_says_how_to_let_it_bring_the_head(made: Path) -> None:
    with headscope.strict():
        with pytest.raises(HeadNotLoaded, match="give this load num_labels"):
            peft.PeftModel.from_pretrained(Auto.from_pretrained(made / "base"), made / "full")
        peft.PeftModel.from_pretrained(Auto.from_pretrained(made / "base", num_labels=2), made / "full")


def test_the_page_lists_these_threads() -> None:
    linked = re.findall(r"\[([\w.-]+/[\w.-]+#\d+)\]\(https://github\.com/", PAGE.read_text(encoding="utf-8"))
    assert {*linked} == {*THREADS}


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def test_a_model_of_images_and_texts_makes_scores_without_a_head_of_its_own(tmp_path: Path) -> None:
    config = transformers.CLIPConfig(
        text_config={**SMALL, "vocab_size": 99}, vision_config={**SMALL, "image_size": 16, "patch_size": 8}
    )
    transformers.CLIPModel(config).save_pretrained(tmp_path)
    assert lost_in(lambda: transformers.AutoModel.from_pretrained(tmp_path)) == set()
    without(tmp_path, "projection")
    lost = lost_in(lambda: transformers.AutoModel.from_pretrained(tmp_path))
    assert lost == {"text_projection.weight", "visual_projection.weight"}


@pytest.mark.parametrize(
    "part", ["", "visual_projection", "logit_scale", "text_model.pooler", "vision_model.pooler", "text_model."]
)
def test_two_encoders_beside_each_other_are_judged_by_every_part_that_their_scores_read(
    part: str, tmp_path: Path
) -> None:
    vision, text = transformers.ViTConfig(**SMALL, image_size=16, patch_size=8), transformers.BertConfig(**SMALL)
    config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(vision, text, projection_dim=8)
    transformers.VisionTextDualEncoderModel(config).save_pretrained(tmp_path)
    if part:
        without(tmp_path, part)
    model, info = transformers.VisionTextDualEncoderModel.from_pretrained(tmp_path, output_loading_info=True)
    ids, pixels = torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3, 16, 16)
    model(input_ids=ids, pixel_values=pixels).logits_per_image.sum().backward()
    read = {name for name, value in model.named_parameters() if value.grad is not None}
    lost = lost_in(lambda: transformers.VisionTextDualEncoderModel.from_pretrained(tmp_path))
    assert lost == info["missing_keys"] & read and bool(lost) is bool(part)


def test_nothing_loaded_is_an_error_whatever_the_load_asks_for(made: Path) -> None:
    with pytest.raises(HeadNotLoaded), headscope.strict():
        Reward.from_pretrained(made / "unwrapped", num_labels=3)


def test_the_default_number_of_classes_is_that_of_the_family(tmp_path: Path) -> None:
    FAMILIES["bart"].build("BartModel").save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", {}, without=("id2label", "label2id", "num_labels"))
    with pytest.raises(HeadNotLoaded, match="classification_head"), headscope.strict():
        Auto.from_pretrained(tmp_path)
    with headscope.strict():
        Auto.from_pretrained(tmp_path, num_labels=3)


def test_a_second_head_that_the_first_scores_do_not_read_gives_a_warning(made: Path, tmp_path: Path) -> None:
    FAMILIES["gpt2"].build("GPT2LMHeadModel").save_pretrained(tmp_path)
    with pytest.warns(LoadNotJudged, match="multiple_choice_head"), headscope.strict():
        transformers.GPT2DoubleHeadsModel.from_pretrained(tmp_path)
