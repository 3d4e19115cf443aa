"""`inspect` of a sharded 14 GB Llama against two real loads: seconds, and peak memory beyond the bare import.

Transformers maps a CPU load whose dtype equals the stored one into memory and touches no page of it: that load costs
as little as a header, until the model is used. A load that converts the dtype reads everything.
"""

from benchmarks.checkpoints import LLAMA_7B, sparse_llama
from benchmarks.goals import Goal, memory_growth, print_results, slowdown
from benchmarks.timing import Command, Sample, headscope, measure, python

IMPORT = "import torch; from transformers import LlamaForSequenceClassification"
# Where memory runs out, the kernel shall end this process and no other.
SPARE_THE_OTHERS = (
    "import pathlib; adj = pathlib.Path('/proc/self/oom_score_adj'); adj.exists() and adj.write_text('1000')"
)


def main(rounds: int = 5) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    folder = str(sparse_llama(LLAMA_7B))
    commands = (
        headscope("inspect", folder, "--num-labels", "3"),
        python("bare import", IMPORT),
        _load("from_pretrained, as stored", "bfloat16", folder),
        _load("from_pretrained, converting", "float16", folder),
    )
    ours, bare, mapped, converted = measure(commands, rounds)
    goals = [
        Goal(
            "memory growth of a converting load, over that of inspect", _growth(converted, ours, bare), 5, at_least=True
        ),
        Goal("memory growth of a load as stored, over that of inspect", _growth(mapped, ours, bare)),
        Goal("inspect of the 7B shape, over a load as stored", slowdown(ours, mapped), 1.0),
        Goal("inspect of the 7B shape, over a converting load", slowdown(ours, converted), 1.0),
    ]
    print_results("Llama 7B shape in bfloat16, local shards of 13.5 GB in all", (ours, bare, mapped, converted), goals)
    return goals


def _load(name: str, dtype: str, folder: str) -> Command:
    load = f"from_pretrained(sys.argv[1], num_labels=3, dtype=torch.{dtype}, output_loading_info=True)"
    code = f"{SPARE_THE_OTHERS}; import sys; {IMPORT}; print(LlamaForSequenceClassification.{load}[1])"
    return python(name, code, folder)


def _growth(load: Sample, ours: Sample, bare: Sample) -> float | None:
    if not (load.runs and ours.runs and bare.runs):
        return None
    return memory_growth(load, bare) / memory_growth(ours, bare)


if __name__ == "__main__":
    main()
