"""Tracing alone, after the import: a BERT-base and an 80-layer Llama, each in a fresh process, with the gradient proof.

The baseline is the import of torch and the model class in the same process. The goals are in seconds, and so shown as
ratios over the seconds that are allowed.
"""

import json
import statistics
import subprocess

from benchmarks.goals import Goal, Ratio, print_goals
from benchmarks.timing import PYTHON, ROOT

ROUNDS = 5
CHILD = """
import json, sys, time
begun = time.perf_counter()
import torch, transformers
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForSequenceClassification
imported = time.perf_counter() - begun
from headscope.facts import Task
from headscope.core.model.classes.reduced_config import shallow_twins
from headscope.core.trace import TokenNames, trace_head
shape = dict(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64)
config, model_class = {
    "bert": (BertConfig(), BertForSequenceClassification),
    "llama": (LlamaConfig(**shape, num_key_value_heads=8, pad_token_id=0), LlamaForSequenceClassification),
}[sys.argv[1]]
with torch.device("meta"):
    model = model_class(config)
begun = time.perf_counter()
twins = lambda: shallow_twins(model)
head = trace_head(model, Task.SEQUENCE_CLASSIFICATION, TokenNames(), prove=True, twins=twins).trace
assert head.verification.agrees, head
print(json.dumps([imported, time.perf_counter() - begun]))
"""
MODELS = (("bert", "tracing BERT-base", 0.4), ("llama", "tracing 80 layers of Llama", 1.5))


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    print(f"Trace, after the import\n  {'':<28}  {'import':>8}  {'trace':>8}  {'min - max':>17}")
    goals = []
    for name, what, allowed in MODELS:
        imports, traces = zip(*(_run(name) for _ in range(rounds)), strict=True)
        span = f"{min(traces):.3f} - {max(traces):.3f} s"
        imported, traced = statistics.median(imports), statistics.median(traces)
        print(f"  {what:<28}  {imported:>6.3f} s  {traced:>6.3f} s  {span:>17}")
        ratio = Ratio(traced / allowed, min(traces) / allowed, max(traces) / allowed)
        goals.append(Goal(f"{what}, over the {allowed} s allowed", ratio, 1.0))
        shares = [trace / bare for trace, bare in zip(traces, imports, strict=True)]
        goals.append(Goal(f"{what}, over the import", Ratio(traced / imported, min(shares), max(shares))))
    print_goals(goals)
    return goals


def _run(name: str) -> list[float]:
    """Seconds of the import and of the first trace in a fresh process."""
    command = [PYTHON, "-c", CHILD, name]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    seconds: list[float] = json.loads(finished.stdout)
    return seconds
