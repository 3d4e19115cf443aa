"""The first look at checkpoints whose structure headscope ships, with an empty cache, against the bare import."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.checkpoints import bert_base
from benchmarks.goals import Goal, print_results, run_alone, slowdown
from benchmarks.timing import PYTHON, WORK, Command, measure, module, python

ROUNDS = 5
_BARE = "bare import"
_IMPORT = "import torch; from transformers import AutoModelForSequenceClassification, BertForSequenceClassification"
_SAVE = (
    "import sys; from transformers import {0}Config, {0}ForSequenceClassification as C; "
    "C({0}Config(num_labels=int(sys.argv[2]))).save_pretrained(sys.argv[1])"
)
BUNDLED = (
    "bert-base-uncased", "distilbert-base-uncased", "distilbert-base-uncased-finetuned-sst-2-english", "gpt2",
    "roberta-base", "xlnet-base-cased",
)  # fmt: skip


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    bert = str(bert_base())
    commands = [
        *(_named(f"inspect {name}", "inspect", name, "--offline") for name in BUNDLED),
        _named("inspect BERT, saved", "inspect", bert),
        _named("inspect BERT classifier, saved", "inspect", str(_saved("Bert", 5))),
        _named("inspect DistilBERT classifier, saved", "inspect", str(_saved("DistilBert", 3))),
        _named("diff-weights BERT, saved", "diff-weights", bert),
        _named("diagram BERT, saved", "diagram", bert),
        _named("compare gpt2 roberta-base", "compare", "gpt2", "roberta-base", "--offline"),
        _named("check SST-2", "check", BUNDLED[2], "--offline", "--for", "training"),
        _named("heads BertForSequenceClassification", "heads", "BertForSequenceClassification"),
        _named("heads, all", "heads"),
    ]
    os.environ["HEADSCOPE_CACHE"] = str(WORK / "empty")
    try:
        bare, *looks = measure([python(_BARE, _IMPORT), *commands], rounds)
    finally:
        del os.environ["HEADSCOPE_CACHE"]
    goals = [Goal(f"{look.name}, over the bare import", slowdown(look, bare), 0.25) for look in looks]
    print_results("First look", (bare, *looks), goals)
    return goals


def _named(name: str, *arguments: str) -> Command:
    return module(name, "headscope", *arguments)


def _saved(family: str, labels: int) -> Path:
    folder = WORK / f"{family.lower()}-{labels}"
    if not (folder / "model.safetensors").exists():
        subprocess.run((PYTHON, "-c", _SAVE.format(family), str(folder), str(labels)), check=True, capture_output=True)
    return folder


if __name__ == "__main__":
    sys.exit(run_alone(measure_goals, ROUNDS))
