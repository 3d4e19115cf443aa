"""Heads whose weights are computed before they are used: the formula says how, or there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import linear, normalize

from tests.trace.heads import EXAMPLES, LABELS, H, Head, Text, trace

COMPUTED: dict[str, tuple[Head, str, set[str]]] = {
    "normalized": (
        lambda s, h, m: linear(h[:, 0], normalize(s.weight)),
        "linear(h[0], normalize(weight, p=2, dim=1, eps=1e-12))",
        {"weight"},
    ),
    "both given to a module": (
        lambda s, h, m: functional_call(s.fc, {"weight": s.fc.weight * 2, "bias": s.fc.bias + 1}, (h[:, 0],)),
        "linear(h[0], fc.weight * 2, fc.bias + 1)",
        {"fc.weight", "fc.bias"},
    ),
    "one given to a module": (
        lambda s, h, m: functional_call(s.fc, {"bias": s.fc.bias + 1}, (h[:, 0],)),
        "linear(h[0], fc.weight, fc.bias + 1)",
        {"fc.weight", "fc.bias"},
    ),
    "another module's": (
        lambda s, h, m: functional_call(s.fc, {"weight": s.weight}, (h[:, 0],)),
        "linear(h[0], weight, fc.bias)",
        {"weight", "fc.bias"},
    ),
    "the module's own": (
        lambda s, h, m: functional_call(s.fc, dict(s.fc.named_parameters()), (h[:, 0],)),
        "fc(h[0])",
        {"fc.weight", "fc.bias"},
    ),
    "a buffer": (lambda s, h, m: linear(h[:, 0], s.prototypes), "linear(h[0], prototypes)", set()),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_formula_names_how_the_weights_are_computed_and_python_computes_the_scores_from_it(name: str) -> None:
    head, formula, parameters = COMPUTED[name]
    model: Any = Text(head)
    model.weight = nn.Parameter(torch.randn(LABELS, H))
    model.register_buffer("prototypes", torch.randn(LABELS, H))
    traced = trace(model)
    assert traced.formula == f"logits = {formula}"
    assert set(traced.parameters) == parameters
    assert set(traced.live) >= parameters
    with torch.no_grad():
        scores = model(**EXAMPLES)
        for h, expected in zip(model.encoder(EXAMPLES["ids"]), scores, strict=True):
            known = {"h": h, "linear": linear, "normalize": normalize}
            layer = model.fc if "fc(" in formula else SimpleNamespace(**dict(model.fc.named_parameters()))
            known |= {"fc": layer, "weight": model.weight, "prototypes": model.prototypes}
            found = eval(formula, known)
            assert torch.allclose(found, expected, atol=1e-5)
