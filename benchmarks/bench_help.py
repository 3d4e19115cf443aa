"""`headscope --help` against the `--help` of an empty Typer app: what our own imports cost."""

from benchmarks.goals import Goal, print_results, slowdown
from benchmarks.timing import WORK, headscope, measure, module

ROUNDS = 21  # a fifth of a second each
EMPTY_APP = """\
import typer

app = typer.Typer()


@app.command()
def main() -> None:
    pass


app()
"""


def measure_goals(rounds: int) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    (WORK / "empty_typer_app.py").write_text(EMPTY_APP)
    commands = (headscope("--help"), module("empty Typer app --help", "empty_typer_app", "--help"))
    ours, empty = measure(commands, rounds)
    goals = [Goal("--help, over an empty Typer app", slowdown(ours, empty), 1.3)]
    print_results("Help", (ours, empty), goals)
    return goals
