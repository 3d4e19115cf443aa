"""Says which answers changed between two commits: `same_answers.py OLD [NEW]`; NEW is by default what is here.

Both get the same questions about the same checkpoints: every command as JSON, in a terminal of 80 columns and in a
pipe, and public functions on models in memory. Versions, times and addresses don't count. Prints each answer that
differs, the first lines of it, and fails if there is any. Doesn't ask what needs a network, a browser or another
library. `--every 1` asks of all checkpoints of the tables instead of a sample, and takes hours.
"""

import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.house.asked_questions import Question, questions

ROOT = Path(__file__).resolve().parents[2]
_LINES = 12


def main() -> int:
    """Asks both versions and prints what differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("old", help="a commit")
    parser.add_argument("new", nargs="?", help="another one (default: the files here)")
    parser.add_argument("--every", type=int, default=8, help="every Nth checkpoint of the tables")
    parser.add_argument("--kept", type=Path, help="a folder that keeps the checkpoints and questions for the next time")
    parser.add_argument("--only", default="", help="a part of the questions' names")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="same-answers-") as scratch:
        folder = Path(scratch)
        asked = [one for one in questions_in(given.kept or folder, given.every) if given.only in one["name"]]
        (folder / "questions.json").write_text(json.dumps(asked), encoding="utf-8")
        trees = [tree_of(given.old, folder / "old"), tree_of(given.new, folder / "new")]
        with ThreadPoolExecutor() as pool:
            old, new = pool.map(lambda tree: answers_of(tree, folder), trees)
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    for name in differing:
        print(f"{name}\n{difference(old.get(name, ''), new.get(name, ''))}\n")
    print(f"{len(old)} answers, {len(differing)} differ")
    return int(bool(differing))


def questions_in(folder: Path, every: int) -> list[Question]:
    """Reads the questions that a folder keeps; an empty folder gets checkpoints and questions first."""
    file, checkpoints = folder / "all-questions.json", folder / "checkpoints"
    if not file.exists():
        checkpoints.mkdir(parents=True)
        file.write_text(json.dumps(questions(checkpoints.resolve(), every)), encoding="utf-8")
    kept: list[Question] = json.loads(file.read_text(encoding="utf-8"))
    return kept


def tree_of(commit: str | None, place: Path) -> Path:
    """Writes the files of a commit; without one, gives the working tree."""
    if commit is None:
        return ROOT
    place.mkdir()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive.stdout, check=True)
    return place


def answers_of(tree: Path, folder: Path) -> dict[str, str]:
    """Asks the headscope of one tree, in a separate process."""
    target = folder / f"answers of {tree.name}.json"
    command = [
        sys.executable,
        str(Path(__file__).with_name("answer_questions.py")),
        str(folder / "questions.json"),
        str(target),
    ]
    surroundings = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=surroundings, cwd=folder)
    answers: dict[str, str] = json.loads(target.read_text(encoding="utf-8"))
    return answers


def difference(old: str, new: str) -> str:
    """The first lines that differ."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "old", "new", lineterm="", n=0)
    return "\n".join(line[:200] for line, _ in zip(list(lines)[2:], range(_LINES), strict=False))


if __name__ == "__main__":
    sys.exit(main())
