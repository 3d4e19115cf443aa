"""`strict`: what it stops is what the loader itself says was missing, and Transformers is as it was afterwards."""

import copy
import shutil
import threading
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import peft
import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification as Auto

import headscope
from headscope.errors import HeadNotLoaded, LoadNotJudged, Unsupported
from headscope.slices.loaded import strict as strict_loads
from tests.api.loaded.lost import CLASSIFIER, POOLER, adapter, lost_in, without
from tests.edits import edit_tensors
from tests.families import FAMILIES, Family


@pytest.mark.parametrize(
    ("name", "options", "lost"),
    [
        ("whole", {}, set()),
        ("base", {}, CLASSIFIER),
        ("base", {"num_labels": 3}, set()),
        ("base", {"id2label": {0: "no", 1: "yes"}}, set()),
        ("mlm", {}, CLASSIFIER | POOLER),
        ("mlm", {"num_labels": 3}, set()),
        ("lost", {}, CLASSIFIER),
        ("lost", {"num_labels": 2}, CLASSIFIER),
        ("whole", {"num_labels": 5, "ignore_mismatched_sizes": True}, set()),
    ],
)
@pytest.mark.parametrize("cls", [Auto, transformers.BertForSequenceClassification], ids=["auto", "class"])
def test_a_load_without_the_head_is_stopped_unless_it_says_that_the_head_is_new(
    cls: Any, name: str, options: dict[str, Any], lost: set[str], saved: Path
) -> None:
    assert lost_in(lambda: cls.from_pretrained(saved / name, **options)) == lost


@pytest.mark.parametrize("allow", ["classifier", ["classifier.weight", "classifier.bias"], ["class*"]])
def test_what_is_allowed_may_be_new(allow: Any, saved: Path) -> None:
    assert lost_in(lambda: Auto.from_pretrained(saved / "base"), allow=allow) == set()
    assert lost_in(lambda: Auto.from_pretrained(saved / "mlm"), allow=allow) == POOLER


def test_a_base_model_may_lack_a_pooler_but_not_everything(saved: Path, tmp_path: Path) -> None:
    assert lost_in(lambda: transformers.AutoModel.from_pretrained(saved / "mlm")) == set()
    model = transformers.AutoModel.from_pretrained(saved / "base")
    model.save_pretrained(tmp_path)
    save_file({"x.y": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert lost_in(lambda: transformers.AutoModel.from_pretrained(tmp_path)) == {*model.state_dict()}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_family_is_stopped_for_what_the_loader_says_is_missing(family: Family, tmp_path: Path) -> None:
    cls: Any = getattr(transformers, family.classifier)
    family.build(family.classifier, **family.pad_token).save_pretrained(tmp_path)
    assert lost_in(lambda: cls.from_pretrained(tmp_path)) == set()
    prefix = f"{cls.base_model_prefix}."
    edit_tensors(
        tmp_path / "model.safetensors",
        lambda state: {name: value for name, value in state.items() if name.startswith(prefix)},
    )
    _, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert lost_in(lambda: cls.from_pretrained(tmp_path)) == set(info["missing_keys"]) != set()


def test_the_info_that_a_caller_asks_for_is_given(saved: Path) -> None:
    with headscope.strict():
        model, info = Auto.from_pretrained(saved / "whole", output_loading_info=True)
    assert (type(model).__name__, set(info["missing_keys"])) == ("BertForSequenceClassification", set())


def test_an_adapter_that_is_to_be_trained_may_have_a_new_head(saved: Path) -> None:
    def train() -> None:
        base = Auto.from_pretrained(saved / "base", num_labels=2)
        kept.append(peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"])))

    kept: list[Any] = []
    assert lost_in(train) == set()


def test_threads_that_the_block_starts_are_judged_and_those_before_are_not(saved: Path) -> None:
    seen: dict[str, str] = {}
    begin, opened = threading.Event(), threading.Event()

    def load(name: str, wait: bool) -> None:
        opened.set()
        if wait:
            begin.wait(30)
        try:
            Auto.from_pretrained(saved / "base")
            seen[name] = "loaded"
        except HeadNotLoaded:
            seen[name] = "stopped"

    before = threading.Thread(target=load, args=("before", True))
    before.start()
    opened.wait(30)
    with headscope.strict():
        inside = threading.Thread(target=load, args=("inside", False))
        inside.start()
        inside.join(60)
        begin.set()
        before.join(60)
    assert seen == {"before": "loaded", "inside": "stopped"}


def test_the_innermost_block_decides_and_an_error_ends_all_of_them(saved: Path) -> None:
    with pytest.raises(HeadNotLoaded), headscope.strict():
        with headscope.strict(allow="classifier"):
            Auto.from_pretrained(saved / "base")
        Auto.from_pretrained(saved / "base")
    Auto.from_pretrained(saved / "base")


def test_a_function_is_decorated(saved: Path) -> None:
    @headscope.strict()
    def serve(name: str, deep: int = 2) -> Any:
        return serve(name, deep - 1) if deep else Auto.from_pretrained(saved / name)

    assert serve("whole") is not None
    with pytest.raises(HeadNotLoaded):
        serve("base")


def test_who_replaced_the_method_meanwhile_keeps_it(saved: Path) -> None:
    before = vars(transformers.PreTrainedModel)["from_pretrained"]
    with headscope.strict():
        ours = vars(transformers.PreTrainedModel)["from_pretrained"]

        def load(cls: type, *args: Any, **kwargs: Any) -> Any:
            return ours.__func__(cls, *args, **kwargs)

        theirs = classmethod(load)
        transformers.PreTrainedModel.from_pretrained = theirs
    assert vars(transformers.PreTrainedModel)["from_pretrained"] is theirs
    Auto.from_pretrained(saved / "base")
    transformers.PreTrainedModel.from_pretrained = before


def test_a_model_in_memory_is_judged(saved: Path) -> None:
    headscope.strict(Auto.from_pretrained(saved / "whole"))
    model = Auto.from_pretrained(saved / "base")
    with pytest.raises(HeadNotLoaded, match="classifier") as caught:
        headscope.strict(model)
    assert set(caught.value.parameters) == CLASSIFIER
    assert "allow=['classifier']" in str(caught.value)
    headscope.strict(model, allow="classifier")


@pytest.mark.parametrize(
    ("error", "told"), [(Unsupported("no trace"), "no trace"), (IndexError("out of range"), "IndexError")]
)
def test_a_load_that_cannot_be_judged_says_so(
    error: Exception, told: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(saved / "whole", tmp_path, dirs_exist_ok=True)
    without(tmp_path, "pooler")
    assert lost_in(lambda: Auto.from_pretrained(tmp_path)) == POOLER
    monkeypatch.setattr("headscope.core.source.live.live_model.trace_live_model", mock.Mock(side_effect=error))
    with pytest.warns(LoadNotJudged, match=told):
        assert lost_in(lambda: Auto.from_pretrained(tmp_path)) == set()
    with pytest.warns(LoadNotJudged, match=told):
        assert lost_in(lambda: Auto.from_pretrained(saved / "mlm", num_labels=3)) == set()
    assert lost_in(lambda: Auto.from_pretrained(saved / "base")) == CLASSIFIER
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoadNotJudged)
        assert lost_in(lambda: Auto.from_pretrained(saved / "whole")) == set()


def test_nothing_is_replaced_while_no_block_is_open() -> None:
    assert strict_loads._PATCHES._open == [] == strict_loads._PATCHES._replaced


SIZES = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 2}


def test_a_class_whose_base_model_has_no_prefix_is_judged(tmp_path: Path) -> None:
    vision, text = {**SIZES, "image_size": 32, "patch_size": 16}, {**SIZES, "vocab_size": 99}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    transformers.CLIPModel(config).save_pretrained(tmp_path / "clip")
    lost = lost_in(lambda: transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "clip"))
    assert lost == CLASSIFIER

    class Own(transformers.BertPreTrainedModel):
        base_model_prefix = ""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.encoder, self.score = transformers.BertModel(config), torch.nn.Linear(32, 2)
            self.post_init()

    Own(FAMILIES["bert"].build_config()).save_pretrained(tmp_path / "own")
    assert lost_in(lambda: Own.from_pretrained(tmp_path / "own")) == set()
    with pytest.warns(LoadNotJudged):  # it has no forward, so nothing tells what the scores depend on
        assert lost_in(lambda: Own.from_pretrained(without(tmp_path / "own", "score"))) == set()


def test_a_pooler_that_branches_on_a_value_is_not_judged_silently(tmp_path: Path) -> None:
    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.gate = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            first = self.dense(hidden[:, 0])
            return first * self.gate(hidden[:, 0]) if hidden.abs().mean() > 1e-9 else first

    class Own(transformers.BertForSequenceClassification):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.bert.pooler = Gated()
            self.post_init()

    Own(FAMILIES["bert"].build_config()).save_pretrained(tmp_path / "own")
    with pytest.warns(LoadNotJudged, match="branches on a floating-point value"):
        assert lost_in(lambda: Own.from_pretrained(without(tmp_path / "own", "gate"))) == set()


def test_an_adapter_is_judged_when_it_is_loaded(saved: Path, tmp_path: Path) -> None:
    whole, bare = adapter(saved, tmp_path / "whole", task_type="SEQ_CLS"), adapter(saved, tmp_path / "bare")
    auto = peft.AutoPeftModelForSequenceClassification
    assert lost_in(lambda: auto.from_pretrained(whole).merge_and_unload()) == set()

    def nested() -> None:
        with headscope.strict():
            model = Auto.from_pretrained(saved / "base", num_labels=2)
        peft.PeftModel.from_pretrained(model, bare)

    assert lost_in(nested) == CLASSIFIER


def test_another_size_of_the_base_model_is_not_forgiven(saved: Path) -> None:
    options = {"num_labels": 2, "vocab_size": 200, "ignore_mismatched_sizes": True}
    assert "bert.embeddings.word_embeddings.weight" in lost_in(lambda: Auto.from_pretrained(saved / "whole", **options))


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        ({"num_labels": 5, "ignore_mismatched_sizes": True}, set()),
        ({"num_labels": 2}, {"classifier.bias"}),
        ({}, {"classifier.bias"}),
    ],
)
def test_an_absent_bias_is_as_new_as_the_reshaped_weight_beside_it(
    given: dict[str, Any], lost: set[str], saved: Path, tmp_path: Path
) -> None:
    shutil.copytree(saved / "whole", tmp_path / "bare")
    without(tmp_path / "bare", "classifier.bias")
    _, info = Auto.from_pretrained(tmp_path / "bare", output_loading_info=True, **given)
    assert info["missing_keys"] == {"classifier.bias"} and bool(info["mismatched_keys"]) is (not lost)
    assert lost_in(lambda: Auto.from_pretrained(tmp_path / "bare", **given)) == lost


@pytest.mark.parametrize("layer", ["classifier.dense.bias", "roberta.encoder.layer.1.output.dense.bias"])
def test_a_reshaped_layer_excuses_no_other_one(layer: str, tmp_path: Path) -> None:
    family = FAMILIES["roberta"]
    family.build(family.classifier, num_labels=2).save_pretrained(tmp_path)
    without(tmp_path, layer)
    options = {"num_labels": 5, "ignore_mismatched_sizes": True}
    assert lost_in(lambda: Auto.from_pretrained(tmp_path, **options)) == {layer}


@pytest.mark.parametrize("change", ["before the block", "copied", "by hand", "made"])
def test_another_number_of_classes_than_the_checkpoint_s_asks_for_a_new_head(change: str, saved: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(saved / "base", num_labels=3)
    if change == "copied":
        config = copy.deepcopy(config)
    elif change == "by hand":
        config = transformers.AutoConfig.from_pretrained(saved / "base")
        config.num_labels = 1
    elif change == "made":
        config = FAMILIES["bert"].build_config(num_labels=3)
    assert lost_in(lambda: Auto.from_pretrained(saved / "base", config=config)) == set()


def test_the_configuration_beside_the_weights_says_that_a_classifier_was_saved(saved: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(saved / "base", num_labels=3)
    assert lost_in(lambda: Auto.from_pretrained(saved / "lost", config=config)) == CLASSIFIER


def test_a_lost_head_is_found_in_a_subfolder_and_where_no_configuration_can_be_read(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES["bert"]
    family.build(family.classifier, num_labels=3).save_pretrained(tmp_path / "part")
    without(tmp_path / "part", "classifier")
    assert lost_in(lambda: Auto.from_pretrained(tmp_path, subfolder="part")) == CLASSIFIER
    monkeypatch.setattr(strict_loads, "read_saved_config", lambda *place: {})
    assert lost_in(lambda: Auto.from_pretrained(tmp_path, subfolder="part")) == CLASSIFIER


def test_loads_of_headscope_itself_are_not_judged(saved: Path) -> None:
    model = Auto.from_pretrained(saved / "base")
    with headscope.strict():
        assert headscope.inspect(saved / "base", num_labels=3, offline=True).head is not None
        with pytest.raises(HeadNotLoaded):
            headscope.strict(model)


def test_a_head_that_only_the_loss_reads_may_be_new(tmp_path: Path) -> None:
    config = transformers.BeitConfig(
        **{**SIZES, "num_hidden_layers": 4}, image_size=32, patch_size=16, out_indices=[1, 2, 3, 4], num_labels=3
    )
    transformers.BeitForSemanticSegmentation(config).save_pretrained(tmp_path)
    without(tmp_path, "auxiliary_head")
    lost = lost_in(lambda: transformers.BeitForSemanticSegmentation.from_pretrained(tmp_path))
    assert lost == set() or all("auxiliary_head" in name for name in lost)  # as long as it isn't traced


def test_a_method_that_was_bound_before_the_block_is_judged(saved: Path) -> None:
    load = transformers.BertForSequenceClassification.from_pretrained
    assert lost_in(lambda: load(saved / "base")) == CLASSIFIER
    assert lost_in(lambda: load(saved / "whole")) == set()


def test_what_somebody_else_has_replaced_gives_a_warning_and_no_crash(saved: Path) -> None:
    old = vars(transformers.PreTrainedModel)["from_pretrained"]

    def load(cls: type, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        return old.__func__(cls, *args, **kwargs)

    with mock.patch.object(transformers.PreTrainedModel, "from_pretrained", classmethod(load)):
        assert lost_in(lambda: Auto.from_pretrained(saved / "base")) == CLASSIFIER
        assert lost_in(lambda: Auto.from_pretrained(saved / "whole")) == set()
    replaced = mock.patch.object(transformers.PreTrainedModel, "from_pretrained")
    with replaced, pytest.warns(LoadNotJudged), headscope.strict():
        pass


def test_one_object_in_two_threads(saved: Path) -> None:
    guard, inside, leave = headscope.strict(), threading.Event(), threading.Event()

    def hold() -> None:
        with guard:
            inside.set()
            leave.wait(60)

    with guard:
        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait(60)
    Auto.from_pretrained(saved / "base")
    leave.set()
    thread.join(60)


def test_a_model_that_was_never_loaded_cannot_be_judged() -> None:
    with pytest.warns(LoadNotJudged):
        headscope.strict(FAMILIES["bert"].build(FAMILIES["bert"].classifier))
