"""State dicts without a config.json: the class that saved them is proposed first, and the configuration loads them."""

from pathlib import Path

import pytest
import torch
import transformers

import headscope
from headscope.errors import NotFound, WithoutConfig
from headscope.facts import Severity, StateKind
from tests.families import FAMILIES

_LABELS = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}


@pytest.mark.parametrize(
    ("family", "prefix", "file"),
    [("bert", "", "weights.pt"), ("distilbert", "module.", "pytorch_model.bin"), ("gpt2", "", "model.safetensors")],
)
def test_the_class_that_saved_the_weights_is_proposed_with_its_sizes(
    family: str, prefix: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = FAMILIES[family]
    model = chosen.build(chosen.classifier, **(chosen.pad_token | _LABELS))
    if file.endswith(".safetensors"):
        model.save_pretrained(tmp_path)
        (tmp_path / "config.json").unlink()
    else:
        torch.save({f"{prefix}{key}": value for key, value in model.state_dict().items()}, tmp_path / file)
    with pytest.raises(NotFound) as caught:
        headscope.inspect(str(tmp_path), offline=True)
    state = caught.value.state
    assert (state.kind, state.rule) == (StateKind.NO_CONFIG, "HS809")
    total = len(model.state_dict()) if not file.endswith(".safetensors") else len(list(model.named_parameters()))
    assert f"{chosen.classifier} fits {total} of {total} keys (100%)" in state.evidence
    monkeypatch.chdir(tmp_path)
    exec(state.repair.code, {})
    report = headscope.check(str(tmp_path), "inference", offline=True)
    for wrapped in report.report.checkpoint.states:
        exec(wrapped.repair.code, {})
    cls = getattr(transformers, chosen.classifier)
    _, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    errors = [item.id for item in headscope.check(str(tmp_path), "inference", offline=True).findings]
    assert not {"HS101", "HS102", "HS103", "HS104", "HS201", "HS802"} & set(errors)
    assert Severity.ERROR not in {
        item.severity
        for item in headscope.check(str(tmp_path), "inference", offline=True).findings
        if item.id not in ("HS301", "HS202")
    }


def test_keys_of_no_class_are_said_to_fit_none(tmp_path: Path) -> None:
    torch.save({f"layer{number}.kernel": torch.ones(2, 2) for number in range(9)}, tmp_path / "weights.pt")
    with pytest.raises(WithoutConfig, match="no classification class of Transformers fits half of the keys") as caught:
        headscope.inspect(str(tmp_path), offline=True)
    assert caught.value.state.repair is None
    assert caught.value.hint == "add the config.json of the model"
