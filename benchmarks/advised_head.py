"""Whether the vector that `probe` advises gives a better classifier than the default head, after fine-tuning both.

`python -m benchmarks.advised_head CHECKPOINT --data FILE --text-column T --label-column L` takes a small part of the
data to train on, asks `headscope probe` about that part only, and fine-tunes the advised head and the class of
Transformers from the same start: the same rows in the same order, the same steps, once for each seed. It prints the
accuracy on rows that neither saw. Not one of the benchmarks with a goal: it is a measurement of the advice.
"""

import argparse
import csv
import importlib.util
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

import headscope
from headscope.facts.probe import ProbeResult
from headscope.render.probe_code import probe_code

Row = tuple[str, str]


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
    return headscope.probe(checkpoint, data=data, text_column="text", label_column="label", limit=len(rows))


def advised_model(result: ProbeResult, folder: Path) -> Callable[[], Any]:
    """The classifier of the module that `--code` writes."""
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


def fine_tuned_accuracy(
    make: Callable[[], Any], tokenizer: Any, parts: tuple[list[Row], list[Row]], given: argparse.Namespace, seed: int
) -> float:
    """The accuracy on the second part after training on the first."""
    train, test = parts
    places = {label: place for place, label in enumerate(sorted({label for _, label in train}))}
    torch.manual_seed(seed)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.rate)
    order = random.Random(seed)
    steps = given.epochs * -(-len(train) // given.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    model.train()
    torch.manual_seed(seed)
    for _ in range(given.epochs):
        rows = list(train)
        order.shuffle(rows)
        for start in range(0, len(rows), given.batch):
            some = rows[start : start + given.batch]
            labels = torch.tensor([places[label] for _, label in some])
            loss = model(**_encoded(tokenizer, some, given.tokens), labels=labels)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for start in range(0, len(test), 64):
            some = test[start : start + 64]
            found = model(**_encoded(tokenizer, some, given.tokens))["logits"].argmax(-1).tolist()
            right += sum(place == places[label] for place, (_, label) in zip(found, some, strict=True))
    return right / len(test)


def _encoded(tokenizer: Any, rows: Sequence[Row], tokens: int) -> dict[str, Any]:
    texts = [text for text, _ in rows]
    return dict(tokenizer(texts, padding=True, truncation=True, max_length=tokens, return_tensors="pt"))


def main() -> int:
    """Asks, trains, and prints a JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.advised_head")
    parser.add_argument("checkpoint")
    parser.add_argument("--data", required=True)
    parser.add_argument("--text-column", required=True)
    parser.add_argument("--label-column", required=True)
    parser.add_argument("--train", type=int, default=500)
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--fewest", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    rows = read_rows(given.data, given.text_column, given.label_column, given.fewest)
    parts = split_rows(rows, given.train, given.test)
    with tempfile.TemporaryDirectory() as name:
        result = ask(given.checkpoint, parts[0], Path(name))
        print(str(result).splitlines()[0], file=sys.stderr)
        classes = len({label for _, label in parts[0]})
        makers = {"advised": advised_model(result, Path(name)), "default": default_model(given.checkpoint, classes)}
        tokenizer = transformers.AutoTokenizer.from_pretrained(given.checkpoint)
        found: dict[str, list[float]] = {kind: [] for kind in makers}
        for seed in range(given.seeds):
            for kind, make in makers.items():
                found[kind].append(fine_tuned_accuracy(make, tokenizer, parts, given, seed))
                print(f"seed {seed}, {kind}: {found[kind][-1]:.4f}", file=sys.stderr)
    versus = result.against("head")
    answer = {
        "advised": result.best,
        "probe": {"best": result.candidate(result.best).mean, "head": result.candidate("head").mean},
        "p_value": None if versus is None else versus.p_value,
        "rows": {"train": len(parts[0]), "test": len(parts[1]), "classes": classes},
        "accuracy": found,
        "mean": {kind: sum(values) / len(values) for kind, values in found.items()},
    }
    print(json.dumps(answer, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
