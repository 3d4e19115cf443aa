"""Questions of `same_answers.py`: commands and public functions, over everything that the tests can write."""

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

Question = dict[str, Any]
_FORMS: dict[str, tuple[int | None, list[str]]] = {"80": (80, []), "pipe": (None, []), "json": (None, ["--json"])}
_ON_EACH = (
    ["inspect"], ["inspect", "--details"], ["diff-weights", "--all"], ["check", "--for", "training"],
    ["check", "--for", "inference"],
)  # fmt: skip
_ON_SNAPSHOTS = (
    *_ON_EACH, ["inspect", "--num-labels", "3"], ["forward"], ["engines"], ["code", "--num-labels", "3"],
    ["snapshot", "-o", "{output}"], ["diagram", "-o", "{output}", "--format", "svg"], ["check", "--format", "github"],
    *(["diagram", "--format", name] for name in ("text", "mermaid", "dot", "html")),
    ["inspect", "--format", "markdown"],
    *(["check", "--format", name] for name in ("junit", "sarif", "markdown")),
)  # fmt: skip
_ON_COPIES = (
    ["forward"], ["forward", "--text", "w1 w2 w3"], ["engines"], ["verify"], ["diagram"], ["repair", "-o", "{output}"],
    ["edit", "-o", "{output}", "--add", "new=mean"], ["edit", "-o", "{output}", "--drop", "LABEL_0"],
)  # fmt: skip
_WITHOUT_MODEL = (
    ["heads"], ["heads", "roberta"], ["heads", "--pooling", "masked_mean"], ["explain"], ["cache"],
    ["explain", "HS102"], ["explain", "logits"], ["explain", "no such topic"], ["heads", "--pooling", "no such"],
    ["inspect", "no/such/folder"], ["inspect"], ["no-such-command"], ["inspect", "gpt2", "--no-such-option"],
    ["check", "gpt2", "--for", "nothing"], ["inspect", "gpt2", "--num-labels", "0"],
)  # fmt: skip
_ON_MODELS = (
    ("inspect", "{model}"), ("check", "{model}", "training"), ("check", "{model}", "inference"), ("forward", "{model}"),
    ("diff_weights", "{model}"), ("diagram", "{model}"), ("parameter_groups", "{model}"), ("code", "{model}"),
)  # fmt: skip


def questions(folder: Path, every: int) -> list[Question]:
    """Writes checkpoints into an empty folder, and gives the questions about them; `every` thins out the tables."""
    found = [*_on_commands(), *_on_snapshots(), *_on_verdicts(folder, every), *_on_states(folder), *_on_hostile(folder)]
    found += _on_live_models(folder)
    return found


def _asked(name: str, arguments: list[str], form: str, **rest: Any) -> Question:
    columns, more = _FORMS[form]
    return {"name": f"{name} [{form}]", "arguments": [*arguments, *more], "columns": columns, **rest}


def _in_forms(name: str, arguments: list[str], forms: Iterable[str] = _FORMS) -> Iterator[Question]:
    """Asks for a command in each form; a stated format is one already."""
    for form in ("pipe",) if "--format" in arguments or arguments[0] in {"code", "snapshot"} else forms:
        yield _asked(name, arguments, form)


def _on_commands() -> Iterator[Question]:
    """Asks what needs no checkpoint: help, topics, classes, misuse."""
    import headscope
    from headscope.commands import COMMANDS

    for words in ([], *([name] for name in COMMANDS)):
        yield _asked(f"help {words}", [*words, "--help"], "80")
    for given in _WITHOUT_MODEL:
        yield from _in_forms(" ".join(given), given)
    for topic in headscope.explain():
        yield _asked(f"explain {topic.id}", ["explain", topic.id], "80")


def _on_snapshots() -> Iterator[Question]:
    from headscope.core.checkpoints.snapshot import bundled_snapshots

    names = bundled_snapshots()
    for name in names:
        for command, *options in _ON_SNAPSHOTS:
            yield from _in_forms(f"{command} {name} {options}", [command, name, "--offline", *options])
    for one, other in pairwise(names):
        yield from _in_forms(f"compare {one} {other}", ["compare", one, other, "--offline"])
    scanned = ["scan", *names, "--offline", "--workers", "0", "-o", "{output}"]
    yield from _in_forms("scan of the snapshots", scanned)


def _on_verdicts(folder: Path, every: int) -> Iterator[Question]:
    """Asks of checkpoints that can or can't answer: the two tables of `tests/verdicts`, and classes of one's own."""
    from tests.verdicts import cases, own_classes, runs

    for case in cases.sampled((*cases.all_broken(), *cases.all_healthy()), every):
        yield from _on_folder(case.name, case.write(_new(folder)), _ON_EACH)
    for number, run_case in enumerate(cases.sampled((*runs.broken(), *runs.healthy()), every)):
        place = run_case.write(_new(folder))
        yield from _on_folder(run_case.name, place, (*_ON_EACH[:1], *_ON_EACH[3:]))
        if number % 8 == 0:
            yield from _on_folder(run_case.name, place, _ON_COPIES)
            whole = ["check", str(place), "--for", "inference"]
            yield _asked(f"{run_case.name}: check with a run", whole, "80", settings={"HEADSCOPE_NO_RUN": ""})
    for name in list(own_classes.CLASSES)[::every]:
        place = _new(folder)
        own_classes.write_own(name, place)
        yield from _on_folder(name, place, _ON_EACH)


def _on_folder(name: str, place: Path, commands: Any) -> Iterator[Question]:
    for command, *options in commands:
        yield from _in_forms(f"{name}: {command} {options}", [command, str(place), *options], ("80", "json"))


def _on_states(folder: Path) -> Iterator[Question]:
    """Asks of saves as training leaves them: the first of each kind that the installed libraries can make."""
    import torch
    from states.table import ENTRIES

    made = sorted((row for row in ENTRIES if not row.lacks()), key=lambda row: row.kind)
    for kind, rows in groupby(made, key=lambda row: row.kind):
        row, place = next(rows), _new(folder)
        torch.manual_seed(0)
        at = place / row.make(place).at
        yield from _on_folder(f"{kind}: {row.name}", at, (["inspect"], ["check"], ["repair", "-o", "{output}"]))


def _on_hostile(folder: Path) -> Iterator[Question]:
    from hostile.corpus import CASES

    for case in CASES:
        if "million" not in case.id and "pipe" not in case.id:  # minutes, and a reader that waits
            yield from _in_forms(f"hostile: {case.id}", case.build(_new(folder)), ("pipe", "json"))


def _on_live_models(folder: Path) -> Iterator[Question]:
    from tests.families import FAMILIES

    for name, family in FAMILIES.items():
        place = _new(folder)
        family.build(family.classifier).save_pretrained(place)
        for function, *arguments in _ON_MODELS:
            yield {
                "name": f"{name}: {function} {arguments}", "function": function, "arguments": arguments,
                "model": str(place), "class": family.classifier,
            }  # fmt: skip


def _new(folder: Path) -> Path:
    """Makes the next folder for a checkpoint."""
    place = folder / f"{len(list(folder.iterdir())):04}"
    place.mkdir()
    return place
