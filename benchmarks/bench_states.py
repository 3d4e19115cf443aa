"""What recognizing states adds to `inspect` of a clean checkpoint, over the same with the recognizers left out."""

from benchmarks.checkpoints import bert_base
from benchmarks.goals import Goal, print_results, slowdown
from benchmarks.timing import measure, python

ROUNDS = 5
TIMES = 20
_EXAMINE = f"""
import sys
import headscope
for _ in range({TIMES}):
    headscope.inspect(sys.argv[1], num_labels=3, offline=True)
"""
_WITHOUT = """
from headscope.core.source import memory as checkpoint
from headscope.core.source.reading.diagnosis import Diagnosis
checkpoint.diagnose = lambda choice, manifest, loaded: Diagnosis()
"""


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    folder = str(bert_base())
    commands = (
        python("with the recognizers", _EXAMINE, folder),
        python("without them", _WITHOUT + _EXAMINE, folder),
    )
    ours, bare = measure(commands, rounds)
    goals = [Goal("inspect with the recognizers of states, over inspect without", slowdown(ours, bare), 1.05)]
    print_results(f"States, {TIMES} examinations of a clean BERT-base", (ours, bare), goals)
    return goals
