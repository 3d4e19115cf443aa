"""PEFT adapters: probe says how to merge one, and the merged model is probed."""

from pathlib import Path

import pytest
from probing import tiny

import headscope
from headscope.errors import Unsupported
from tests.families import FAMILIES

peft = pytest.importorskip("peft", reason="peft is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")


def test_the_hint_leads_to_a_model_that_is_probed(tmp_path: Path) -> None:
    base = tiny.save(tmp_path / "base", "bert")
    model = FAMILIES["bert"].build("BertForSequenceClassification", num_labels=3)
    adapter = tmp_path / "adapter"
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], base_model_name_or_path=str(base))
    wrapped = peft.get_peft_model(model, config)
    wrapped.peft_config["default"].base_model_name_or_path = str(base)
    wrapped.save_pretrained(adapter)
    data = tmp_path / "rows.csv"
    rows = [f"{text},{'ab'[at % 2]}" for at, (text,) in enumerate(tiny.texts(20))]
    data.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    given = {"data": data, "text_column": "text", "label_column": "label", "folds": 2}
    with pytest.raises(Unsupported, match="is a PEFT adapter") as raised:
        headscope.probe(adapter, **given)
    assert "AutoPeftModelForSequenceClassification.from_pretrained(ADAPTER, num_labels=N)" in raised.value.hint
    whole = peft.AutoPeftModelForSequenceClassification.from_pretrained(adapter, num_labels=3).merge_and_unload()
    whole.save_pretrained(tmp_path / "merged")
    tiny.load(base, "bert")[1].save_pretrained(tmp_path / "merged")
    assert headscope.probe(tmp_path / "merged", **given).head == "head"
