"""The first look at published checkpoints and fine-tunes of them, with an empty cache, against the bare import."""

import json
import os
import subprocess
from pathlib import Path
from unittest.mock import patch

from benchmarks.checkpoints import bert_base
from benchmarks.goals import Goal, print_results, slowdown
from benchmarks.timing import PYTHON, WORK, Command, measure, module, python
from headscope.core.checkpoints.reading import read_manifest
from headscope.core.checkpoints.snapshot import bundled_snapshots
from headscope.core.facts.stored.location import HubOptions, Location

ROUNDS = 5
_BARE = "bare import"
_SST2 = "distilbert-base-uncased-finetuned-sst-2-english"
_IMPORT = "import torch; from transformers import AutoModelForSequenceClassification, BertForSequenceClassification"
_FINE_TUNE = """
import json, sys
from transformers import AutoConfig, AutoModelForSequenceClassification
folder, published, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
labels = {number: f"class {number}" for number in range(count)}
config = AutoConfig.for_model(published.pop("model_type"), **published | {
    "id2label": labels, "label2id": {name: number for number, name in labels.items()},
})
AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
"""
FINE_TUNES = (("bert-base-uncased", 5), ("distilbert-base-uncased", 3), ("roberta-base", 28), ("gpt2", 2))


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    bert = str(bert_base())
    commands = [
        *(_named(f"inspect {name}", "inspect", name, "--offline") for name in bundled_snapshots()),
        _named("inspect BERT, saved", "inspect", bert),
        *(
            _named(f"inspect {name}, fine-tuned, {count} labels", "inspect", str(_fine_tuned(name, count)))
            for name, count in FINE_TUNES
        ),
        _named("diff-weights BERT, saved", "diff-weights", bert),
        _named("diagram BERT, saved", "diagram", bert),
        _named("compare gpt2 roberta-base", "compare", "gpt2", "roberta-base", "--offline"),
        _named("check SST-2", "check", _SST2, "--offline", "--for", "training"),
        _named("heads BertForSequenceClassification", "heads", "BertForSequenceClassification"),
        _named("heads, all", "heads"),
    ]
    with patch.dict(os.environ, HEADSCOPE_CACHE=str(WORK / "empty")):
        bare, *looks = measure([python(_BARE, _IMPORT), *commands], rounds)
    goals = [Goal(f"{look.name}, over the bare import", slowdown(look, bare), 0.15) for look in looks]
    print_results("First look", (bare, *looks), goals)
    return goals


def _named(name: str, *arguments: str) -> Command:
    return module(name, "headscope", *arguments)


def _fine_tuned(name: str, labels: int) -> Path:
    """A classifier of a published configuration, as Transformers saves it."""
    folder = WORK / f"fine-tuned-{name}-{labels}"
    if not (folder / "model.safetensors").exists():
        config = json.dumps(read_manifest(Location(name, hub=HubOptions(offline=True))).config)
        command = (PYTHON, "-c", _FINE_TUNE, str(folder), config, str(labels))
        subprocess.run(command, check=True, capture_output=True)
    return folder
