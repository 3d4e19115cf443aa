"""Answers the questions of `same_answers.py` with the headscope that is imported: QUESTIONS.json ANSWERS.json.

Each question is put in this one process: a command by its arguments, or a public function on a model in memory.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

OUTPUT = "{output}"
"""What a command names for a file or folder that it writes; what it wrote belongs to the answer."""

_CHANGING = (
    (r"\d[\d.,]* ?(?:s|ms|seconds|minutes?|MB|MiB|GiB)\b", "MEASURED"),
    (r'("(?:seconds|took|load_seconds|peak_\w+|memory\w*)": )[\d.e-]+', r"\1MEASURED"),
    (r"0x[0-9a-f]{8,}", "ADDRESS"),
    (r"headscope \d+\.\d+\S*", "headscope VERSION"),
    (r"\bid=\d+;", "id=LINK;"),
    (r"(?m)^.*[\u2800-\u28ff].*\n?", ""),
    (r"\x1b\[(?:\?25[hl]|1A|2K)", ""),
    (r"\n+\Z", "\n"),
)
"""What differs between two runs of the same code: times, memory, addresses, the numbers of links, a spinner.

And the version of headscope.
"""


class WatchedStream(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def main(questions: str, answers: str) -> None:
    """Writes the answer to each question by its name."""
    os.environ |= {"HEADSCOPE_NO_CACHE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    os.environ |= {"TERM": "xterm-256color", "TZ": "UTC"}
    os.environ.pop("COLUMNS", None)
    asked = json.loads(Path(questions).read_text(encoding="utf-8"))
    found = {}
    for number, question in enumerate(asked):
        answer = answer_live(question) if "model" in question else answer_command(question)
        found[question["name"]] = without_changing(answer)
        if number % 100 == 0:
            print(f"{number} of {len(asked)}", file=sys.__stderr__, flush=True)
    Path(answers).write_text(json.dumps(found), encoding="utf-8")


def answer_command(question: dict[str, Any]) -> str:
    """Runs a command as `headscope` would: exit code, stdout, stderr, and what it wrote."""
    from headscope.shell import main as run_command

    columns = question["columns"]
    is_watched = columns is not None
    settings = question.get("settings", {}) | ({"COLUMNS": str(columns)} if is_watched else {})
    streams = (WatchedStream(), WatchedStream()) if is_watched else (io.StringIO(), io.StringIO())
    with tempfile.TemporaryDirectory() as scratch, patch.dict(os.environ, settings):
        output = Path(scratch) / "output"
        arguments = [word.replace(OUTPUT, str(output)) for word in question["arguments"]]
        out, err = contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1])
        with out, err, patch.object(sys, "stdin", io.StringIO()):
            code = _exit_code(run_command, arguments)
        shown = f"exit {code}\n{streams[0].getvalue()}\n--- stderr\n{streams[1].getvalue()}{_written(output)}"
        return shown.replace(scratch, "SCRATCH")


def _exit_code(run_command: Any, arguments: list[str]) -> object:
    try:
        return run_command(arguments)
    except SystemExit as err:
        return err.code
    except Exception as err:  # a traceback is an answer too, and must stay the same or go
        return f"{type(err).__name__}: {err}"


def _written(output: Path) -> str:
    """Lists the files that a command wrote: text as it is, anything else by its digest."""
    files = [output] if output.is_file() else sorted(path for path in output.rglob("*") if path.is_file())
    lines = []
    for file in files:
        content = file.read_bytes()
        is_text = file.suffix in {".json", ".md", ".txt", ".py", ".jsonl", ".csv", ".svg", ".html"} or file == output
        text = content.decode("utf-8", "replace") if is_text else hashlib.sha256(content).hexdigest()
        lines.append(f"\n--- wrote {file.relative_to(output.parent)}\n{text}")
    return "".join(lines)


def answer_live(question: dict[str, Any]) -> str:
    """Calls a public function with a model in memory, and gives the result as text and as JSON."""
    import torch
    import transformers

    import headscope

    with contextlib.redirect_stderr(io.StringIO()):
        torch.manual_seed(0)
        model = getattr(transformers, question["class"]).from_pretrained(question["model"])
        arguments = [model if word == "{model}" else word for word in question["arguments"]]
        try:
            result = getattr(headscope, question["function"])(*arguments)
        except Exception as err:  # an error is an answer
            return f"{type(err).__name__}: {err}"
    document = result.to_dict() if hasattr(result, "to_dict") else None
    return f"{result}\n{json.dumps(document, sort_keys=True, default=str)}"


def without_changing(text: str) -> str:
    """Removes what differs between two runs of the same code."""
    for pattern, word in _CHANGING:
        text = re.sub(pattern, word, text)
    return text


if __name__ == "__main__":
    main(*sys.argv[1:])
