"""`inspect` of a sharded 14 GB Llama against two real loads: seconds, and peak memory beyond the bare import.

The load as a user writes it, with the dtype as stored, and one that converts the dtype. Transformers may map the first
into memory and touch no page of it; the second reads and allocates everything, and runs once.
"""

from benchmarks.checkpoints import LLAMA_7B, sparse_llama
from benchmarks.goals import Goal, memory_growth, print_results, slowdown
from benchmarks.timing import Command, headscope, measure, python

ROUNDS = 5
IMPORT = "import torch; from transformers import LlamaForSequenceClassification"
# Where memory runs out, the kernel shall end this process and no other.
SPARE_THE_OTHERS = (
    "import pathlib; adj = pathlib.Path('/proc/self/oom_score_adj'); adj.exists() and adj.write_text('1000')"
)


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    folder = str(sparse_llama(LLAMA_7B))
    commands = (
        headscope("inspect", folder, "--num-labels", "3"),
        python("bare import", IMPORT),
        _load("from_pretrained", "", folder),
    )
    ours, bare, load = measure(commands, rounds)
    (converting,) = measure((_load("from_pretrained, converting", "dtype=torch.float16, ", folder),), 1, warm=False)
    goals = [
        Goal("inspect of the 7B shape, over the bare import", slowdown(ours, bare)),
        Goal("inspect of the 7B shape, over from_pretrained", slowdown(ours, load), 1.15),
        Goal("inspect of the 7B shape, over a converting load", slowdown(ours, converting), 1.0),
        Goal("memory growth of from_pretrained, over inspect", memory_growth(load, ours, bare)),
        Goal("memory growth of a converting load, over inspect", memory_growth(converting, ours, bare), 5, True),
    ]
    print_results("Llama 7B shape in bfloat16, three local shards, 14 GB", (ours, bare, load, converting), goals)
    return goals


def _load(name: str, dtype: str, folder: str) -> Command:
    load = f"from_pretrained(sys.argv[1], num_labels=3, {dtype}output_loading_info=True)"
    code = f"{SPARE_THE_OTHERS}; import sys; {IMPORT}; print(LlamaForSequenceClassification.{load}[1])"
    return python(name, code, folder)
