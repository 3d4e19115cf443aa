"""What `engines` takes from its facts, and what a comparison with an engine costs beside the engine's own time."""

import os
import subprocess
from pathlib import Path
from unittest.mock import patch

from benchmarks.goals import Goal, print_results, slowdown
from benchmarks.timing import PYTHON, WORK, measure, python

ROUNDS = 5
_TEXTS = 60
_NAME = "distilbert-base-uncased-finetuned-sst-2-english"
_MAIN = "import sys; from headscope.shell.app import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass"
_SAVE = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(1000)}, unk_token="w1"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w1", pad_token="w0").save_pretrained(sys.argv[1])
BertForSequenceClassification(BertConfig(vocab_size=1000, num_labels=3)).save_pretrained(sys.argv[1])
"""
_ENGINE = """
import sys
from pathlib import Path
from headscope.shared.serving.running.process import ask_engine
texts = [(line,) for line in Path(sys.argv[2]).read_text().splitlines()]
assert ask_engine("transformers-pipeline", Path(sys.argv[1]), texts, raw=True, python=None).items
"""
_VERIFY = """
import sys
import headscope
from pathlib import Path
texts = Path(sys.argv[2]).read_text().splitlines()
assert headscope.verify_served(sys.argv[1], engine="transformers-pipeline", text=texts, logits=True).served.same
"""


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurements and returns their goals."""
    folder, texts = _classifier()
    commands = (
        python("half a second", "import time; time.sleep(0.5)"),
        python("engines, from facts", _MAIN, "engines", _NAME, "--offline"),
        python("the engine alone", _ENGINE, str(folder), str(texts)),
        python("verify --with the engine", _VERIFY, str(folder), str(texts)),
    )
    with patch.dict(os.environ, HEADSCOPE_CACHE=str(WORK / "empty")):
        allowed, facts, alone, verified = measure(commands, rounds)
    goals = [
        Goal("engines from facts, over half a second", slowdown(facts, allowed), 1.0),
        Goal(f"verify --with the pipeline on {_TEXTS} texts, over the engine alone", slowdown(verified, alone)),
    ]
    print_results("Engines", (allowed, facts, alone, verified), goals)
    return goals


def _classifier() -> tuple[Path, Path]:
    """A classifier of BERT-base's size, and a file with texts."""
    folder, texts = WORK / "engines", WORK / "engines.txt"
    if not (folder / "model.safetensors").exists():
        subprocess.run((PYTHON, "-c", _SAVE, str(folder)), check=True, capture_output=True)
    lines = (" ".join(f"w{(7 * text + 3 * word) % 900}" for word in range(5 + text % 20)) for text in range(_TEXTS))
    texts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder, texts
