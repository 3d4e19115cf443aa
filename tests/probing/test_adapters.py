"""PEFT adapters: probe says how to merge one, and the merged model is probed."""

from pathlib import Path

import pytest
from labeled.trained import write_csv
from probing import tiny
from probing.made import probed, probed_files
from probing.media import files, save, table

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
    rows = [(text, "ab"[at % 2]) for at, (text,) in enumerate(tiny.texts(20))]
    data = write_csv(tmp_path / "rows.csv", rows)
    with pytest.raises(Unsupported, match="is a PEFT adapter") as raised:
        probed(adapter, data)
    assert "AutoPeftModelForSequenceClassification.from_pretrained(ADAPTER, num_labels=N)" in raised.value.hint
    whole = peft.AutoPeftModelForSequenceClassification.from_pretrained(adapter, num_labels=3).merge_and_unload()
    whole.save_pretrained(tmp_path / "merged")
    tiny.load(base, "bert")[1].save_pretrained(tmp_path / "merged")
    assert probed(tmp_path / "merged", data).head == "head"


@pytest.mark.parametrize(("name", "input"), [("vit", "image"), ("ast", "audio")])
def test_the_hint_for_files_leads_to_a_model_that_is_probed(name: str, input: str, tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    import transformers

    base, adapter, merged = save(name, tmp_path / "base"), tmp_path / "adapter", tmp_path / "merged"
    auto = getattr(transformers, f"AutoModelFor{input.title()}Classification")
    config = peft.LoraConfig(target_modules=["query", "q_proj"], modules_to_save=["classifier"])
    wrapped = peft.get_peft_model(auto.from_pretrained(base, num_labels=3), config)
    wrapped.peft_config["default"].base_model_name_or_path = str(base)
    wrapped.save_pretrained(adapter)
    data = table(files(name, tmp_path, 12), tmp_path / "rows.csv")
    with pytest.raises(Unsupported, match="is a PEFT adapter") as raised:
        probed_files(adapter, data, input)
    call = f"PeftModel.from_pretrained({auto.__name__}.from_pretrained(BASE, num_labels=N), ADAPTER).merge_and_unload()"
    assert call in raised.value.hint
    assert "processor" in raised.value.hint
    whole = peft.PeftModel.from_pretrained(auto.from_pretrained(base, num_labels=3), adapter).merge_and_unload()
    whole.save_pretrained(merged)
    (merged / "preprocessor_config.json").write_bytes((base / "preprocessor_config.json").read_bytes())
    assert probed_files(merged, data, input).head == "head"
