"""A class of another family than its checkpoint's: examined as `from_pretrained` loads it, with its warning."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import transformers

import headscope
from tests.families import FAMILIES
from tests.saving import assert_as_loaded

_VIT = FAMILIES["vit"].config


def vit_mae() -> Any:
    config = transformers.ViTMAEConfig(
        **_VIT, decoder_hidden_size=32, decoder_num_hidden_layers=1, decoder_num_attention_heads=4,
        decoder_intermediate_size=37,
    )  # fmt: skip
    return transformers.ViTMAEForPreTraining(config)


CROSSINGS = {
    "ibert from roberta": (lambda: FAMILIES["roberta"].build("RobertaForMaskedLM"), "IBertForSequenceClassification"),
    "vit from vit-mae": (vit_mae, "ViTForImageClassification"),
    "roberta from bert": (lambda: FAMILIES["bert"].build("BertForMaskedLM"), "RobertaForSequenceClassification"),
}


@pytest.mark.parametrize(("make", "class_name"), CROSSINGS.values(), ids=CROSSINGS)
def test_a_load_across_families_is_examined_with_the_warning_that_it_prints(
    make: Any, class_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make().save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING), caplog.at_level(logging.WARNING, logger="transformers"):
        _, info = getattr(transformers, class_name).from_pretrained(
            tmp_path, output_loading_info=True, ignore_mismatched_sizes=True
        )
    printed = re.search(r"You are using a model of type `\S+` to instantiate a model of type `\S+`", caplog.text)
    report = headscope.inspect(str(tmp_path), model_class=class_name)
    assert any(printed[0] in note for note in report.notes)
    assert_as_loaded(report.weights, info)


def test_a_class_of_the_own_family_prints_no_warning(tmp_path: Path) -> None:
    FAMILIES["bert"].build("BertForMaskedLM").save_pretrained(tmp_path)
    report = headscope.inspect(str(tmp_path), model_class="BertForTokenClassification")
    assert not any("using a model" in note for note in report.notes)
