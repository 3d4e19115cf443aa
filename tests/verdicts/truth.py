"""Whether a checkpoint works: loaded and run by Transformers or PEFT, without headscope."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from tests.verdicts.cases import Case
from tests.verdicts.models import FAMILIES, WORDS, scores_of

_CLASSES = (2, 3, 5)
"""One score a class; more are one for each token."""
_NEAR, _NEAR_IN_HALF = 0.02, 0.6
"""Differences in parts of the spread of the scores: rounding stays below them, throughout in half precision too."""


@dataclass(frozen=True)
class Truth:
    """`why` a checkpoint can't be used; "" where it works. `model` is what was loaded, None where it doesn't load."""

    why: str
    model: Any = None


def truth_of(case: Case, place: Path) -> Truth:
    """What a user meets who loads and runs the checkpoint."""
    try:
        model, random = _loaded(case, place)
        plain, _ = _loaded(case, place, attn_implementation="eager")
    except Exception as err:  # whatever a user would see
        return Truth(f"does not load: {type(err).__name__}: {str(err).splitlines()[0][:120]}")
    # The fused kernels for attention on the CPU take NaN for a masked position; no other device or kernel does.
    return Truth(_problem(case, place, model, random) or _problem(case, place, plain, random), model)


def _loaded(case: Case, place: Path, **options: Any) -> tuple[Any, list[str]]:
    auto = getattr(transformers, f"AutoModel{FAMILIES[case.family][1]}")
    if case.adapter is None:
        model, info = auto.from_pretrained(place, output_loading_info=True, **options)
        return model, [*info["missing_keys"], *map(str, info["mismatched_keys"])]
    from peft import PeftModel

    base = auto.from_pretrained(place.parent / "base", num_labels=case.classes, **options)
    return PeftModel.from_pretrained(base, place), []  # what it left out shows in the scores


def _problem(case: Case, place: Path, model: Any, random: list[str]) -> str:
    if random:
        return f"random or left out: {', '.join(random[:3])}"
    try:
        scores = scores_of(model, case.made.inputs)
    except Exception as err:
        return f"forward raises {type(err).__name__}: {str(err).splitlines()[0][:120]}"
    near = _NEAR if model.dtype.itemsize >= 4 else _NEAR_IN_HALF
    rounding = 4 * torch.finfo(model.dtype).eps
    return (
        _of_whole_numbers(case, place)
        or _of_scores(scores, rounding)
        or _of_other_answers(case, place, scores, near)
        or _of_texts(case, place, model, near)
    )


def _of_whole_numbers(case: Case, place: Path) -> str:
    """A weight stored as whole numbers, which the loader takes without the scale that made them."""
    if not (place / "model.safetensors").exists():
        return ""
    whole = [name for name, value in load_file(place / "model.safetensors").items() if not value.is_floating_point()]
    return f"{whole[0]} is stored as whole numbers, without a scale" if whole else ""


def _of_scores(scores: torch.Tensor, rounding: float) -> str:
    if not bool(scores.isfinite().all()):
        return "scores that are not finite"
    margin = rounding * float(scores.abs().max())
    if scores.shape[1] in _CLASSES and scores.argmax(1).unique().numel() == 1:
        return "the same answer to every input"
    if scores.shape[1] == 1:
        return "" if float(scores.max() - scores.min()) > margin else "the same score for every input"
    between = scores[:, :, None] - scores[:, None, :]
    changes = (between.amax(0) > margin) & (between.amin(0) < -margin)
    return "" if bool(changes.any()) else "the same order of the scores for every input"


def _of_other_answers(case: Case, place: Path, scores: torch.Tensor, near: float) -> str:
    if not case.is_whole:
        return ""
    expected = torch.load(place.parent / "expected.pt") if case.adapter else case.made.scores
    difference = float((scores - expected).abs().max() / expected.std())
    return f"other scores than the trained model gave, by {difference:.2g} of their spread" if difference > near else ""


def _of_texts(case: Case, place: Path, model: Any, near: float) -> str:
    """Texts through the checkpoint's own tokenizer: alone, and in a batch."""
    if not (place / "tokenizer.json").exists():
        return ""
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    count = max(json.loads((place / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"].values()) + 1
    words = [f"w{at}" for at in (*range(10, 18), *range(WORDS, count))]
    texts = [" ".join(words[: 3 + at]) for at in range(len(words) - 2)] + [" ".join(reversed(words))]
    try:
        batch = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
        together = scores_of(model, batch)
        width = together.shape[1]
        alone = [scores_of(model, tokenizer(text, return_tensors="pt", return_token_type_ids=False)) for text in texts]
    except Exception as err:
        return f"texts of its tokenizer raise {type(err).__name__}"
    if any(row.shape[1] != width for row in alone):
        return ""  # one score for each token: padding adds scores
    difference = float((torch.cat(alone) - together).abs().max() / together.std())
    return f"padding changes the scores by {difference:.2g} of their spread" if difference > near else ""
