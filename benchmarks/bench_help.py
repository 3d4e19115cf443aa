"""`headscope --help` against the `--help` of an empty Typer app: what our own imports cost."""

from benchmarks.goals import Goal, print_results, slowdown
from benchmarks.timing import headscope, measure, python

EMPTY_APP = """
import typer

app = typer.Typer()

@app.command()
def main() -> None:
    pass

app()
"""


def main(rounds: int = 21) -> list[Goal]:
    """Prints the measurement and returns its goals."""
    ours, empty = measure((headscope("--help"), python("empty Typer app --help", EMPTY_APP, "--help")), rounds)
    goals = [Goal("--help, over an empty Typer app", slowdown(ours, empty), 1.3)]
    print_results("Help", (ours, empty), goals)
    return goals


if __name__ == "__main__":
    main()
