"""The modules of the page "Look at a checkpoint" in Node.js, and where an answer differs from what the command says."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headscope.core.words.plain_words import plain_words
from headscope.core.words.tokens import legend_of, token_rows
from headscope.facts import Report
from headscope.shared.report.documents import inspect_document, inspect_markdown
from headscope.shared.report.findings import next_of_inspect
from headscope.shared.report.report_facts import brief_label_facts, brief_pooling_facts
from headscope.shared.report.verdict import tell_verdict

NOT_THE_PAGES = {
    "environment": ("python", "torch", "huggingface_hub", "safetensors"),
    "checkpoint": ("bytes_read", "requests"),
}
"""What a browser lacks, or needs other bytes and requests for."""


class NodeScript:
    """A script of this folder in a process of Node.js, which answers each line of JSON with one."""

    def __init__(self, name: str, *arguments: str, parse_int: Callable[[str], Any] = int) -> None:
        if shutil.which("node") is None:
            pytest.skip("Node.js is not installed")
        command = ["node", "--no-warnings", str(Path(__file__).with_name(name)), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._parse_int = parse_int

    def answer(self, **line: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline(), parse_int=self._parse_int)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def said_of(report: Report, reference: str, typed: str) -> dict[str, Any]:
    """What the page has to say, by the command's own functions; `typed` is what stands behind `headscope inspect`."""
    place = f" {report.checkpoint.reference} "  # what is on the Hub has no folder to name in a command
    found = [replace(one, remedy=one.remedy.replace(place, " MODEL ")) for one in report.findings]
    report = replace(report, findings=tuple(found))
    document = json.loads(json.dumps(inspect_document(report)))
    for part, names in NOT_THE_PAGES.items():
        document[part] = {name: value for name, value in document[part].items() if name not in names}
    document["checkpoint"]["reference"] = reference
    document["summary"]["reference"] = reference
    rows = token_rows(report, report.head) if report.head is not None else ()
    labels = {name: body.plain for name, body in brief_label_facts(report)}["labels"]
    return {
        **{f"report.{name}": value for name, value in document.items()},
        "words": plain_words(report),
        "tone": tell_verdict(report).tone.value,
        "labels": labels,
        "pooling": next((body.plain for _, body in brief_pooling_facts(report)), None),
        "cells": [[[cell.text, cell.mark.value] for cell in row.cells] for row in rows],
        "legend": legend_of(rows) if report.head is not None else "",
        "markdown": inspect_markdown(report).replace(report.checkpoint.reference, reference, 1),
        "next": [list(step) for step in next_of_inspect(report, typed, details=False)],
    }


def differences(told: dict[str, Any], said: dict[str, Any]) -> Iterator[str]:
    """The parts of an answer of the page that are not what the command says."""
    tokens = told["tokens"] or {"rows": [], "legend": ""}
    own = {
        **{f"report.{name}": value for name, value in told["report"].items()},
        **{name: told[name] for name in ("words", "tone", "labels", "markdown", "next")},
        "pooling": dict(told["lines"]).get("pooling"),
        "cells": [row["cells"] for row in tokens["rows"]],
        "legend": tokens["legend"],
    }
    missing = object()
    yield from (name for name in own.keys() | said.keys() if own.get(name, missing) != said.get(name, missing))
