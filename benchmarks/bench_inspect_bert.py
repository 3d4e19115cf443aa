"""`inspect` of a local BERT-base against the bare import of its class, and against a real load."""

from benchmarks.checkpoints import bert_base
from benchmarks.goals import Goal, print_results, slowdown
from benchmarks.timing import headscope, measure, python

ROUNDS = 5
IMPORT = "import torch; from transformers import BertForSequenceClassification"
LOAD = (
    f"import sys; {IMPORT}; "
    "print(BertForSequenceClassification.from_pretrained(sys.argv[1], num_labels=3, output_loading_info=True)[1])"
)


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    folder = str(bert_base())
    commands = (
        headscope("inspect", folder, "--num-labels", "3"),
        python("bare import", IMPORT),
        python("from_pretrained", LOAD, folder),
    )
    ours, bare, load = measure(commands, rounds)
    goals = [
        Goal("inspect of BERT-base, over the bare import", slowdown(ours, bare), 1.15),
        Goal("inspect of BERT-base, over from_pretrained", slowdown(ours, load), 1.0),
    ]
    print_results("BERT-base, one local file of 440 MB", (ours, bare, load), goals)
    return goals
