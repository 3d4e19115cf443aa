"""A row as it is seen: what `inspect` and `check` say, the repairs in their order, and the real load after them."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from packaging.requirements import Requirement
from states.table.entry import Entry, Made, distribution_of

from headscope.shell import main
from tests.edits import prove_in_this_process

_ROUNDS = 3
Document = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """What was seen: exit codes, verdict, the states by rule, their tool and evidence, and what the repair gave."""

    inspect: int
    check: int
    verdict: str
    rules: tuple[str, ...]
    tool: str
    findings: tuple[str, ...]
    text: str
    repaired: str
    versions: tuple[str, ...]


def observe(row: Entry, folder: Path) -> Seen:
    """Makes the save, looks at it, runs the repairs and loads the result; an assertion fails where that goes wrong."""
    torch.manual_seed(0)
    made = row.make(folder)
    place = folder / made.at
    (inspected, report), (checked, judged) = _run("inspect", place), _run("check", place)
    states = _states(report)
    names = (Requirement(text).name for text in row.needs)
    seen = {
        "inspect": inspected,
        "check": checked,
        "verdict": judged.get("verdict") or f"error: {judged['error']['code']}",
        "rules": tuple(state["rule"] for state in states),
        "tool": states[0]["tool"] if states else "",
        "findings": tuple(item["id"] for result in judged.get("results", ()) for item in result["findings"]),
        "text": json.dumps([report, judged]),
        "versions": tuple(f"{name} {version(distribution_of(name))}" for name in names),
    }
    repaired = ""
    if row.repaired is True and row.rules:
        promised = (report.get("repaired") or {}).get("weights")
        repaired = _carried_out(place, made, promised, seen["rules"])
        repaired = repaired if made.takes else _repair(place, made, report, promised)
    elif row.exits == (0, 0) and made.model is not None:
        repaired = _loads(place, made, None)
    return Seen(**seen, repaired=repaired)


def assert_as_said(row: Entry, place: Path) -> Seen:
    """Makes the save of a row below a folder; what is seen there is what the row says."""
    folder = place / "checkpoint"
    folder.mkdir()
    seen = observe(row, folder)
    assert (seen.rules, seen.inspect, seen.check) == (row.rules, *row.exits), seen
    assert row.tool in seen.tool
    assert set(row.findings) <= set(seen.findings), seen.findings
    assert all(words in seen.text for words in row.said), seen.text
    return seen


def _run(command: str, place: Path) -> tuple[int, Document]:
    """The exit code of a command, and the JSON that it prints."""
    given = [command, str(place), "--json", "--offline", *(("--for", "inference") if command == "check" else ())]
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = main(given)
    return code, json.loads(out.getvalue())


def _states(document: Document) -> list[Document]:
    """The states in a report or in an error."""
    if "error" in document:
        return [document["state"]] if document.get("state") else []
    return list(document["checkpoint"]["states"])


def _carried_out(place: Path, made: Made, promised: Document | None, rules: tuple[str, ...]) -> str:
    """`headscope repair` on the save: what it writes loads with every value, and the save stays as it is."""
    folder, target = (place if place.is_dir() else place.parent), place.with_name(f"{place.name}.repaired")
    before = _content(folder)
    out = io.StringIO()
    with patch("headscope.copies.proving.prove_in_process", prove_in_this_process), redirect_stdout(out):
        code = main(["repair", str(folder), "-o", str(target), "--json", *made.given])
    found = json.loads(out.getvalue())
    proof = found.get("proof", {})
    is_whole = not (proof.get("new") or proof.get("lost") or (found.get("not_taken") and not made.takes))
    assert (code, found.get("verdict")) == (int(not is_whole), "proven" if is_whole else "incomplete"), found
    assert {state["rule"] for state in found["states"]} >= set(rules), found["states"]
    assert _content(folder) == before
    assert not _states(_run("inspect", target)[1])
    return _loads(target, made, promised)


def _content(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def _repair(place: Path, made: Made, report: Document, promised: Document | None) -> str:
    """Runs what is printed until no state is left, and gives what the load then found, in words."""
    folder = place if place.is_dir() else place.parent
    after = folder / made.after if made.after else folder
    for _ in range(_ROUNDS):
        states = _states(report)
        if not states:
            break
        for state in states:
            assert state["repair"], f"no repair for {state['rule']}"
            _do(state["repair"], folder, made)
        folder = after
        _, report = _run("inspect", after)
    assert not _states(report), _states(report)
    return _loads(after, made, promised)


def _do(repair: Document, folder: Path, made: Made) -> None:
    """One repair, in the folder of the checkpoint."""
    code = repair["code"]
    for old, new in made.filled:
        code = re.sub(old, new, code)
    with chdir(folder), patch.dict(os.environ):  # a library may set its own
        if repair["language"] == "python":
            exec(code, {})
            return
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(["bash", "-ec", code], capture_output=True, text=True, check=False,
                              env={**os.environ, "PATH": path})  # fmt: skip
        assert not done.returncode, f"{code}\n{done.stderr[-2000:]}"


def _loads(place: Path, made: Made, promised: Mapping[str, Any] | None) -> str:
    """What the real load of the repaired checkpoint finds; `check` has to pass on it."""
    code, judged = _run("check", place)
    errors = [(item["id"], item["message"]) for item in judged.get("findings", ()) if item["severity"] == "error"]
    assert (code, judged.get("verdict")) == (0, "passed"), (code, judged.get("error"), errors)
    cls = made.cls or type(made.model)
    loaded, info = cls.from_pretrained(place, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    assert promised is None or not promised["new"], promised
    real = loaded.state_dict()
    for name, value in made.model.state_dict().items():
        assert torch.allclose(real[name].float(), value.float(), atol=1e-5), name
    return f"{len(real)} of {len(real)} tensors loaded"
