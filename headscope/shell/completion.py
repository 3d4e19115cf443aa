"""What a shell offers for a word that is being typed: read from file names and headings, which takes no time.

Nothing here imports facts, PyTorch, Transformers or the Hub's client. What is offered isn't checked: a class or a
checkpoint in the cache may be of no use to the command.
"""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import get_args

import typer

from headscope.shell.options.checkpoint import VectorName

_PACKAGE = Path(__file__).parents[1]
_HEADING = re.compile(r"^## (?P<names>[^:\n]+): ", re.MULTILINE)
_GROUPS = ("rules", "pooling", "operations", "ideas", "terms", "words")
_PLAIN = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*)?", re.ASCII)
"""Names that every shell takes as they are; others, which may hold anything, are not offered."""
_OF_VERIFY, _OF_SAVES = (*range(701, 710), 724), range(710, 724)
"""The numbers of the rules that `verify` runs, and of those that only `verify_save` in Python runs."""
_TASK = "task, "
"""Beginning of the heading of the topic that names every task."""


def complete_checkpoint(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes IDs of the bundled snapshots and in the Hub's cache, with the local files that begin so."""
    # Without a match of ours, the shell completes a path itself.
    from headscope.core.upstream.hub import client_cache, repositories_in

    bundled = (file.stem for file in (_PACKAGE / "core" / "checkpoints" / "bundled").glob("*.json"))
    found = _complete_from((*bundled, *repositories_in(client_cache(ctx.params.get("cache_dir")))), incomplete)
    if found:
        # A shell offers local files itself only if nothing else fits.
        with suppress(OSError):
            found += _complete_from((entry.name for entry in Path().iterdir()), incomplete)
    return found


def complete_engine(incomplete: str) -> list[str]:
    """Completes the engines that headscope has facts on."""
    files = sorted((_PACKAGE / "shared" / "serving" / "facts").glob("*.toml"))
    return _complete_from((file.stem.replace("_", "-") for file in files), incomplete)


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes checkpoints, and classes of Transformers once a capital letter is typed."""
    classes = complete_class(incomplete) if incomplete[:1].isupper() else []
    return [*complete_checkpoint(ctx, incomplete), *classes]


def complete_class(incomplete: str) -> list[str]:
    """Completes the classification classes of the Transformers that headscope ships facts of."""
    return _complete_from(_shipped_classes(), incomplete)


def complete_pattern(incomplete: str) -> list[str]:
    """Completes model types, and classes: these begin with a capital letter."""
    return _complete_from({*_shipped_classes(), *_shipped_classes().values()}, incomplete)


def complete_task(incomplete: str) -> list[str]:
    """Completes the tasks, by headscope's names and by those of other libraries."""
    names = next(names for names in _topic_headings("words") if names.startswith(_TASK))
    return [name for name in names.split(", ")[1:] if name.startswith(incomplete)]


def complete_pooling(incomplete: str) -> list[str]:
    """Completes the kinds of pooling."""
    return _complete_from(_topic_headings("pooling"), incomplete)


def complete_vector(incomplete: str) -> list[str]:
    """Completes the names of vectors."""
    return [name for name in get_args(VectorName) if name.startswith(incomplete)]


def complete_rules(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes the IDs or names of the command's rules, for the last one of a list such as `HS101,HS3`."""
    before, comma, last = incomplete.rpartition(",")
    given = set(before.split(","))
    rules = {int(rule[0].removeprefix("HS")): rule for rule in map(str.split, _topic_headings("rules"))}
    of_verify = [number for number in rules if number in _OF_VERIFY]
    of_others = [number for number in rules if number not in _OF_VERIFY and number not in _OF_SAVES]
    own = [rules[number] for number in (of_verify if ctx.info_name == "verify" else of_others)]
    rest = [rule for rule in own if not given & set(rule)]
    found = [next((name for name in rule if name.startswith(last)), "") for rule in rest]
    return [f"{before}{comma}{name}" for name in found if name]


def complete_topic(incomplete: str) -> list[str]:
    """Completes the topics of `explain`: rules, poolings, operations, ideas, words on the screens; or a class."""
    # In the file of rules, a blank separates the ID from the name; elsewhere it is a comma.
    first = (" " if group == "rules" else "," for group in _GROUPS)
    names = [
        name.partition(end)[0] for group, end in zip(_GROUPS, first, strict=True) for name in _topic_headings(group)
    ]
    return [name for name in names if name.lower().startswith(incomplete.lower())] or complete_class(incomplete)


def complete_severity(incomplete: str) -> list[str]:
    """Completes the severities of findings, the gravest first."""
    return [name for name in ("error", "warning", "note") if name.startswith(incomplete)]


def _complete_from(names: Iterable[str], incomplete: str) -> list[str]:
    """Gives the names that begin with the typed text, sorted, each once."""
    return sorted({name for name in names if name.startswith(incomplete) and _PLAIN.fullmatch(name)})


def _topic_headings(group: str) -> list[str]:
    """Reads the headings of a file of topics, each an ID and other names."""
    text = (_PACKAGE / "shared" / "explanations" / f"{group}.md").read_text(encoding="utf-8")
    return _HEADING.findall(text)


def _shipped_classes() -> dict[str, str]:
    """Reads the shipped classes with the model type of each; none if the file can't be read."""
    from zipfile import ZipFile  # slow to import, and seldom needed

    try:
        with ZipFile(_PACKAGE / "core" / "source" / "storage" / "bundled" / "facts.zip") as shipped:
            found = json.loads(shipped.read("classes.json"))
    # A missing or damaged file: zipfile, lzma and json each raise their own errors, and a shell shows none of them.
    except Exception:
        return {}
    return dict(found)
