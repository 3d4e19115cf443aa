"""An adapter that a CrossEncoder saved: sentence-transformers loads it, and headscope says what that load gives."""

from pathlib import Path
from typing import Any

import pytest
import torch

import headscope
from headscope.core.facts.verdict import Verdict
from tests.saving import skip_without_native_adapters
from tests.verdicts.runs import RunCase

library = pytest.importorskip("sentence_transformers")
peft = pytest.importorskip("peft")
pytestmark = pytest.mark.usefixtures("_native_adapters")
PAIRS = [("w1 w2 w3", "w4 w5"), ("no", "film was good")]


@pytest.fixture
def _native_adapters() -> None:
    skip_without_native_adapters()


@pytest.mark.parametrize(("family", "layer"), [("Bert", "query"), ("ModernBert", "Wqkv"), ("DistilBert", "q_lin")])
@pytest.mark.parametrize("classes", [1, 3])
def test_an_adapter_of_a_cross_encoder_is_what_the_library_loads(
    family: str, layer: str, classes: int, tmp_path: Path
) -> None:
    base = RunCase("base", family, classes=classes).write(tmp_path / "base")
    encoder = library.CrossEncoder(str(base), device="cpu", num_labels=classes)
    more = {"ModernBert": ["head"], "DistilBert": ["pre_classifier"]}.get(family, [])
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=[layer], modules_to_save=["classifier", *more])
    encoder.add_adapter(settings)
    torch.manual_seed(1)
    for value in encoder.parameters():
        if value.requires_grad:
            value.data.add_(torch.randn_like(value) * 0.2)
    encoder.save_pretrained(str(tmp_path / "saved"))
    loaded: Any = library.CrossEncoder(str(tmp_path / "saved"), device="cpu", num_labels=classes)
    raw = loaded.predict(PAIRS, activation_fn=torch.nn.Identity(), convert_to_tensor=True, batch_size=1)
    for (first, second), scores in zip(PAIRS, raw.reshape(len(PAIRS), -1), strict=True):
        shown = headscope.forward(tmp_path / "saved", device="cpu", text=[first], text_pair=[second])
        torch.testing.assert_close(torch.tensor(shown.logits).flatten(), scores.float(), atol=1e-4, rtol=0)
    found = headscope.verify(str(tmp_path / "saved"), loader="sentence-transformers")
    assert (found.verdict, list(found.findings)) == (Verdict.PASSED, []), str(found)
