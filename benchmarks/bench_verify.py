"""What `verify` costs beside the load itself: the head, and the whole model, of BERT-base (440 MB)."""

from benchmarks.checkpoints import bert_base
from benchmarks.goals import Goal, print_results, slowdown
from benchmarks.timing import measure, python

ROUNDS = 5
_LOAD = """
import sys
from transformers import BertForSequenceClassification
model = BertForSequenceClassification.from_pretrained(sys.argv[1])
"""
_VERIFY = "import headscope\nassert headscope.verify(model, sys.argv[1], head={head}).tensors\n"


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    folder = str(bert_base())
    commands = (
        python("load alone", _LOAD, folder),
        python("load, then verify the head", _LOAD + _VERIFY.format(head=True), folder),
        python("load, then verify all of it", _LOAD + _VERIFY.format(head=False), folder),
    )
    load, head, whole = measure(commands, rounds)
    goals = [
        Goal("load and verify of the head, over the load alone", slowdown(head, load), 1.15),
        Goal("load and verify of the whole model, over the load alone", slowdown(whole, load), 1.3),
    ]
    print_results("Verify, BERT-base of 440 MB", (load, head, whole), goals)
    return goals
