"""A chain of modules from its files alone: the arithmetic, the weights and what is not known, without the library."""

from pathlib import Path

import pytest
import torch
import transformers

import headscope
from headscope.facts import PoolingKind
from tests.modules import dense, pooling, write_chain


def _save(folder: Path, **changes: object) -> dict[str, torch.Tensor]:
    """BERT, its mean, and a Dense that writes one score; the tensors of the Dense."""
    kind, settings, tensors = dense(16, 1)
    for setting in ("activation_function", "module_input_name"):  # then they are those of the library
        del settings[setting]
    write_chain(folder, "Bert", [pooling("mean"), (kind, settings | changes, tensors)])
    for name in ("config_sentence_transformers.json", "sentence_bert_config.json"):
        (folder / name).unlink()
    return tensors


def test_the_score_is_the_dense_layer_of_the_mean(tmp_path: Path) -> None:
    tensors = _save(tmp_path)
    report = headscope.inspect(tmp_path)
    assert report.head.formula == "logits = tanh(linear(mean(h[non-pad])))"
    assert report.head.pooling.kind is PoolingKind.MASKED_MEAN
    assert (report.model.class_name, report.model.activation, report.model.loss) == ("CrossEncoder", "sigmoid", "none")
    assert not any(stage.file.endswith("module_chain.py") for stage in report.head.stages)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    with torch.no_grad():
        hidden = transformers.BertModel.from_pretrained(tmp_path).eval()(**tokenizer("w1 w2", return_tensors="pt"))[0]
    expected = torch.tanh(hidden.mean(1) @ tensors["linear.weight"].T + tensors["linear.bias"])
    found = headscope.forward(tmp_path, device="cpu", text="w1 w2").logits
    torch.testing.assert_close(torch.tensor(found), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"activation_function": "my_functions.Sine"}, "its activation is my_functions.Sine, which is not of PyTorch"),
        ({"in_features": "16"}, "in_features in its settings is '16', not a size"),
    ],
)
def test_a_module_that_is_not_known_is_named_and_no_other_head_is_shown(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    _save(tmp_path, **changes)
    report = headscope.inspect(tmp_path)
    assert report.head is None
    assert report.model.class_name in {"CrossEncoder", "SentenceTransformer"}
    assert said in " ".join(gap.reason for gap in report.not_determined)
    assert "Train it first" not in str(headscope.check(tmp_path, profile="inference"))


def test_a_module_that_reads_what_none_gives_is_a_fault(tmp_path: Path) -> None:
    _save(tmp_path, module_input_name="pooled")
    parts = headscope.inspect(tmp_path).checkpoint.sentence_transformers.parts
    assert parts[2].fault == "no module before it gives pooled"
