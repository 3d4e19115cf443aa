"""Whether the vector that `probe` advises gives a better classifier than the default head, however both are trained.

`python -m benchmarks.advised_head CHECKPOINT --data FILE --text-column T --label-column L` takes a small part of the
data to train on, asks `headscope probe` about that part only, and trains the advised head and the class of
Transformers from the same start: the same rows in the same order, the same steps, once for each seed. It prints the
accuracy and the loss on rows that neither saw. `--train` names what is trained:

- `head`: the last linear layer alone; the base model is frozen, so its vectors are computed once, without dropout.
  A pooler belongs to the base model;
- `last-layers`: the head and the last `--layers` layers that it reads; in the default model, also the pooler between
  them;
- `all`: every weight, from the start (full fine-tuning);
- `head-then-all`: `head`, then `all` with the same steps as `all` alone (linear probing, then fine-tuning);
- `all-groups`: `all`, with `--new-rate` for new weights, by `headscope.parameter_groups` (not for the advised head,
  whose module isn't a class of Transformers).

Besides, `written` starts from the checkpoint that `probe --write-head` writes of these rows.

Not one of the benchmarks with a goal: it is a measurement of the advice.
"""

import argparse
import csv
import importlib.util
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

import headscope
from headscope.slices.probe.facts.result import HeadLayout, ProbeResult
from headscope.slices.probe.screen.code import probe_code

Row = tuple[str, str]
REGIMES = ("head", "last-layers", "all", "head-then-all", "all-groups")


def read_rows(path: str, text: str, label: str, fewest: int) -> list[Row]:
    """Different texts with their labels, of classes with at least that many texts."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        rows = list({row[text]: row[label] for row in csv.DictReader(file)}.items())
    counts = {name: sum(label == name for _, label in rows) for name in {label for _, label in rows}}
    return [row for row in rows if counts[row[1]] >= fewest]


def split_rows(rows: Sequence[Row], train: int, test: int) -> tuple[list[Row], list[Row]]:
    """A part to train on and a part to score on, the same every time; classes of the first part only."""
    shuffled = list(rows)
    random.Random(0).shuffle(shuffled)
    first = shuffled[:train]
    known = {label for _, label in first}
    return first, [row for row in shuffled[train:] if row[1] in known][:test]


def ask(checkpoint: str, rows: Sequence[Row], folder: Path) -> ProbeResult:
    """What `probe` says of the rows to train on."""
    data = folder / "rows.csv"
    with data.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return headscope.probe(
        checkpoint, data=data, text_column="text", label_column="label", limit=len(rows), write_head=folder / "written"
    )


def advised_model(result: ProbeResult, folder: Path) -> Callable[[], Any]:
    """The classifier of the module that `probe -o FILE.py` writes."""
    path = folder / "advised.py"
    path.write_text(probe_code(result), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("advised", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Callable[[], Any] = module.Classifier
    return made


def default_model(checkpoint: str, classes: int) -> Callable[[], Any]:
    """The class for sequence classification that Transformers gives for the checkpoint."""
    kind: Any = transformers.AutoModelForSequenceClassification
    return lambda: kind.from_pretrained(checkpoint, num_labels=classes, dtype=torch.float32)


@dataclass(frozen=True)
class Task:
    """The rows to train on and to score on, as the model takes them."""

    tokenizer: Any
    train: list[Row]
    test: list[Row]
    places: dict[str, int]
    tokens: int

    def encoded(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Texts as one batch."""
        texts = [text for text, _ in rows]
        options = {"padding": True, "truncation": True, "max_length": self.tokens, "return_tensors": "pt"}
        return dict(self.tokenizer(texts, **options))

    def labels(self, rows: Sequence[Row]) -> torch.Tensor:
        """The classes of some rows, by number."""
        return torch.tensor([self.places[label] for _, label in rows])


@dataclass(frozen=True)
class Kind:
    """A classifier: how it is made, its last linear layer, and how many layers of the base model its vector passes.

    `layers` is None where that is all of them.
    """

    make: Callable[[], Any]
    last: str
    layers: int | None = None


@contextmanager
def entering(module: nn.Module) -> Iterator[list[torch.Tensor]]:
    """What enters a module, call by call."""
    seen: list[torch.Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        yield seen
    finally:
        hook.remove()


def vectors_of(model: Any, last: nn.Module, task: Task, rows: Sequence[Row]) -> torch.Tensor:
    """What the last linear layer reads of each row, without dropout. Raises SystemExit for heads that score tokens."""
    model.eval()
    with torch.inference_mode(), entering(last) as seen:
        for start in range(0, len(rows), 64):
            model(**task.encoded(rows[start : start + 64]))
    if seen[0].dim() != 2:
        raise SystemExit(f"the head of {type(model).__name__} scores every token: give --train all")
    return torch.cat(seen).clone()


def shuffled(count: int, batch: int, epochs: int, seed: int) -> Iterator[list[int]]:
    """Batches of row numbers, in the same order for every model."""
    order = random.Random(seed)
    for _ in range(epochs):
        rows = list(range(count))
        order.shuffle(rows)
        yield from (rows[start : start + batch] for start in range(0, count, batch))


def train(
    weights: Iterable[nn.Parameter | dict[str, Any]],
    loss_of: Callable[[list[int]], torch.Tensor],
    batches: Sequence[list[int]],
    rate: float,
) -> None:
    """Takes a step for each batch, at a rate that falls to 0."""
    chosen: Any = list(weights)
    optimizer = torch.optim.AdamW(chosen, lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / len(batches)))
    for rows in batches:
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(rows))
        optimizer.step()
        schedule.step()


def train_head(model: Any, last: nn.Module, task: Task, given: argparse.Namespace, seed: int) -> None:
    """Trains the last linear layer on vectors that are computed once."""
    vectors, labels = vectors_of(model, last, task, task.train), task.labels(task.train)
    batches = list(shuffled(len(task.train), given.batch, given.head_epochs, seed))
    train(
        last.parameters(),
        lambda rows: nn.functional.cross_entropy(last(vectors[rows]), labels[rows]),
        batches,
        given.head_rate,
    )


def train_weights(
    model: Any, weights: Sequence[nn.Parameter | dict[str, Any]], task: Task, given: argparse.Namespace, seed: int
) -> None:
    """Trains some weights of the model, or groups of them, by whole forward passes with dropout."""
    several = (item["params"] if isinstance(item, dict) else [item] for item in weights)
    chosen = {id(weight) for group in several for weight in group}
    for weight in model.parameters():
        weight.requires_grad_(id(weight) in chosen)
    model.train()
    torch.manual_seed(seed)

    def loss_of(numbers: list[int]) -> torch.Tensor:
        rows = [task.train[number] for number in numbers]
        loss: torch.Tensor = model(**task.encoded(rows), labels=task.labels(rows))["loss"]
        return loss

    train(weights, loss_of, list(shuffled(len(task.train), given.batch, given.epochs, seed)), given.rate)


def last_layers(model: Any, kind: Kind, count: int) -> list[nn.Parameter]:
    """The weights of the head and of the last layers that its vector passes; what is behind them has no effect.

    In the class of Transformers, those of the pooler too: the vector passes it on its way to the head.
    """
    base = model.base if hasattr(model, "base") else getattr(model, "model", model).base_model
    blocks = max((item for item in base.modules() if isinstance(item, nn.ModuleList)), key=len)
    read = list(blocks)[: kind.layers]
    inside = {id(weight) for weight in base.parameters()}
    head = [weight for weight in model.parameters() if id(weight) not in inside]
    pooler = [weight for name, weight in base.named_parameters() if name.startswith("pooler.")]
    layers = [weight for block in read[max(0, len(read) - count) :] for weight in block.parameters()]
    return [*head, *(() if hasattr(model, "base") else pooler), *layers]


def score(model: Any, task: Task) -> dict[str, float]:
    """Accuracy and cross-entropy on the rows that no training saw."""
    model.eval()
    with torch.inference_mode():
        parts = [task.test[start : start + 64] for start in range(0, len(task.test), 64)]
        logits = torch.cat([model(**task.encoded(part))["logits"] for part in parts])
    labels = task.labels(task.test)
    loss = float(nn.functional.cross_entropy(logits, labels))
    return {"accuracy": float((logits.argmax(-1) == labels).float().mean()), "loss": loss}


def trained_score(kind: Kind, regime: str, task: Task, given: argparse.Namespace, seed: int) -> dict[str, float]:
    """The score of a model that was trained in one of the regimes."""
    torch.manual_seed(seed)
    model = kind.make()
    last = model.get_submodule(kind.last)
    if regime in ("head", "head-then-all"):
        train_head(model, last, task, given, seed)
    if regime in ("all", "head-then-all"):
        train_weights(model, list(model.parameters()), task, given, seed)
    if regime == "last-layers":
        train_weights(model, last_layers(model, kind, given.layers), task, given, seed)
    if regime == "all-groups":
        groups = headscope.parameter_groups(model, head_lr=given.new_rate, base_lr=given.rate, decay=0.0)
        train_weights(model, groups, task, given, seed)
    return score(model, task)


def kinds_of(result: ProbeResult, checkpoint: str, classes: int, folder: Path) -> dict[str, Kind]:
    """The advised classifier, the default one, and the default one with the classifier that was written."""
    head = result.head_input
    assert head is not None
    advised = advised_model(result, folder)
    is_own = "base" not in dict(advised().named_children())
    layer = result.candidate(result.best).layer
    return {
        "advised": Kind(advised, f"model.{head.classifier}" if is_own else "classifier", None if is_own else layer),
        "default": Kind(default_model(checkpoint, classes), head.classifier),
    } | written_kind(result, classes)


def written_kind(result: ProbeResult, classes: int) -> dict[str, Kind]:
    """The checkpoint that was written; nothing where the class's own parameters can't hold the classifier."""
    found, head = result.written, result.head_input
    assert found is not None
    assert head is not None
    if found.failure or found.layout is not HeadLayout.OWN:
        print(f"no written head: {found.failure or found.why_module}", file=sys.stderr)
        return {}
    assert [item.label for item in result.classes] == sorted(item.label for item in result.classes)
    return {"written": Kind(default_model(found.folder, classes), head.classifier)}


def main() -> int:
    """Asks, trains, and prints a JSON object."""
    given = _arguments()
    rows = read_rows(given.data, given.text_column, given.label_column, given.fewest)
    parts = split_rows(rows, given.train_rows, given.test_rows)
    places = {label: place for place, label in enumerate(sorted({label for _, label in parts[0]}))}
    with tempfile.TemporaryDirectory() as place:
        result = ask(given.checkpoint, parts[0], Path(place))
        print(str(result).splitlines()[0], file=sys.stderr)
        kinds = kinds_of(result, given.checkpoint, len(places), Path(place))
        task = Task(transformers.AutoTokenizer.from_pretrained(given.checkpoint), *parts, places, given.tokens)
        found: dict[str, dict[str, list[dict[str, float]]]] = {}
        for regime in given.train:
            used = {name: kind for name, kind in kinds.items() if regime != "all-groups" or name != "advised"}
            of_regime = found.setdefault(regime, {name: [] for name in used})
            for seed in range(given.seeds):
                for name, kind in used.items():
                    of_regime[name].append(trained_score(kind, regime, task, given, seed))
                    print(f"{regime}, seed {seed}, {name}: {of_regime[name][-1]}", file=sys.stderr)
    versus, first = result.against("head"), result.probe_first
    answer = {
        "advised": result.best,
        "head_first": None if first is None else first.advised.value,
        "new_weights": [] if result.head_input is None else result.head_input.new,
        "probe": {"best": result.candidate(result.best).mean, "head": result.candidate("head").mean},
        "p_value": None if versus is None else versus.p_value,
        "rows": {"train": len(parts[0]), "test": len(parts[1]), "classes": len(places)},
        "options": {name: getattr(given, name) for name in _STEPS},
        "scores": found,
    }
    print(json.dumps(answer, indent=2))
    return 0


_STEPS = ("epochs", "batch", "rate", "new_rate", "layers", "head_epochs", "head_rate", "tokens")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.advised_head")
    parser.add_argument("checkpoint")
    parser.add_argument("--data", required=True)
    parser.add_argument("--text-column", required=True)
    parser.add_argument("--label-column", required=True)
    parser.add_argument("--train", nargs="+", choices=REGIMES, default=list(REGIMES))
    parser.add_argument("--train-rows", type=int, default=300)
    parser.add_argument("--test-rows", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--new-rate", type=float, default=1e-3)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--head-epochs", type=int, default=100)
    parser.add_argument("--head-rate", type=float, default=1e-2)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--fewest", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
