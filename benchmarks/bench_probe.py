"""What the pass of `probe` costs beside a plain forward of the same texts in the same batches, and its peak memory."""

import json
import statistics
import subprocess

from benchmarks.goals import Goal, Ratio, exact, print_goals
from benchmarks.timing import MIB, PYTHON, ROOT, python, run_once

ROUNDS = 5
_FEW, _MANY = 500, 4_000
_BEGIN = """
import json, random, sys, tempfile, time
from pathlib import Path
import numpy as np, torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
from headscope.slices.probe.hidden.features import Reader, _batch_rows, extract_features, token_lengths

def reader(layers, size, inner_size):
    torch.manual_seed(0)
    words = {f"w{number}": number for number in range(30_000)}
    inner = Tokenizer(models.WordLevel(words, unk_token="w1"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="w0", unk_token="w1", model_max_length=512)
    sizes = {"num_hidden_layers": layers, "hidden_size": size, "intermediate_size": inner_size}
    model = BertForSequenceClassification(BertConfig(num_attention_heads=12, **sizes)).eval()
    return Reader(model, tokenizer, torch.device("cpu"), "classifier")

def texts(count, longest):
    draw = random.Random(0)
    sizes = [draw.randint(max(longest // 8, 1), longest) for _ in range(count)]
    return [(" ".join(f"w{draw.randrange(2, 30_000)}" for _ in range(size)),) for size in sizes]

def features(reader, given):
    with tempfile.TemporaryDirectory() as folder:
        extract_features(reader, given, Path(folder), batch_size=32, tell=lambda sentence: None)
"""
_TIMED = """
torch.set_num_threads(1)  # processor time of one thread, which other work on the machine disturbs least
given, reader = texts(256, 128), reader(6, 384, 1536)
lengths = token_lengths(reader, given)

def plain():
    for rows in _batch_rows(lengths, 32, padded=True):
        with torch.inference_mode():
            batch = reader.tokenizer([given[row][0] for row in rows], padding=True, return_tensors="pt")
            reader.model(**batch)

def timed(function, *arguments):
    begun = time.process_time()
    function(*arguments)
    return time.process_time() - begun

plain(), features(reader, given)
for _ in range(int(sys.argv[1])):
    print(json.dumps([timed(plain), timed(features, reader, given)]), flush=True)
"""
_HELD = "features(reader(6, 768, 64), texts(int(sys.argv[1]), 4))\n"


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    goals = [
        Goal("the vectors of 256 texts, over a plain forward of the same batches", _slowdown(rounds), 1.15),
        Goal(f"peak memory of {_MANY:,} texts, over that of {_FEW:,}", _growth(), 1.1),
    ]
    print("Probe, the pass over the texts")
    print_goals(goals)
    return goals


def _slowdown(rounds: int) -> Ratio | None:
    """One process, so that both meet the same machine; the rounds alternate."""
    ran = subprocess.run(
        [PYTHON, "-c", _BEGIN + _TIMED, str(rounds)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    pairs = [json.loads(line) for line in ran.stdout.splitlines()]
    if ran.returncode or not pairs:
        print(ran.stderr[-500:])
        return None
    plain, ours = zip(*pairs, strict=True)
    print(
        f"  plain forward {statistics.median(plain):.2f} s of processor, probe's pass {statistics.median(ours):.2f} s"
    )
    ratios = [mine / theirs for theirs, mine in pairs]
    return Ratio(statistics.median(ours) / statistics.median(plain), min(ratios), max(ratios))


def _growth() -> Ratio:
    few, many = (run_once(python(f"{count} texts", _BEGIN + _HELD, str(count))).peak for count in (_FEW, _MANY))
    print(f"  peak of {_FEW:,} texts {few / MIB:.0f} MiB, of {_MANY:,} texts {many / MIB:.0f} MiB")
    return exact(many / few)
