"""`inspect` of an 80-layer Llama from a snapshot file against the bare import of its class."""

from benchmarks.checkpoints import LLAMA_70B, llama_snapshot
from benchmarks.goals import Goal, print_results, slowdown
from benchmarks.timing import headscope, measure, python

ROUNDS = 5
IMPORT = "import torch; from transformers import LlamaForSequenceClassification"


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    snapshot = str(llama_snapshot(LLAMA_70B))
    commands = (headscope("inspect", snapshot, "--num-labels", "3"), python("bare import", IMPORT))
    ours, bare = measure(commands, rounds)
    goals = [Goal("inspect of the 70B shape, over the bare import", slowdown(ours, bare), 1.6)]
    print_results("Llama 70B shape, 80 layers, from a snapshot", (ours, bare), goals)
    return goals
