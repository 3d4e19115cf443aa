"""What a shell offers for a word that is being typed: read from file names and headings, which takes no time.

Nothing here imports facts, PyTorch, Transformers or the Hub's client. What is offered isn't checked: a class or a
checkpoint in the cache may be of no use to the command.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import typer

_PACKAGE = Path(__file__).parents[1]
_HEADING = re.compile(r"^## (?P<names>[^:\n]+): ", re.MULTILINE)
_GROUPS = ("rules", "pooling", "operations", "ideas", "words")
_PLAIN = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*)?", re.ASCII)
"""Names that every shell takes as they are; others, which may hold anything, are not offered."""
_OF_VERIFY, _OF_SAVES = (*range(701, 710), 724), range(710, 724)
"""The numbers of the rules that `verify` runs, and of those that only `verify_save` in Python runs."""
_TASK = "task, "
"""How the heading of the topic begins that names every task."""


def complete_checkpoint(ctx: typer.Context, incomplete: str) -> list[str]:
    """IDs of the bundled snapshots and in the Hub's cache, and local files beside them; for a path, the shell's own."""
    from headscope.upstream.hub import client_cache, repositories_in

    bundled = (file.stem for file in (_PACKAGE / "checkpoints" / "bundled").glob("*.json"))
    found = _beginning((*bundled, *repositories_in(client_cache(ctx.params.get("cache_dir")))), incomplete)
    return [*found, *_local(incomplete)] if found else []


def complete_engine(incomplete: str) -> list[str]:
    """The engines that there are facts on."""
    files = sorted((_PACKAGE / "serving" / "facts").glob("*.toml"))
    return _beginning((file.stem.replace("_", "-") for file in files), incomplete)


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """The same, and classes of Transformers once a capital letter is typed."""
    classes = complete_class(incomplete) if incomplete[:1].isupper() else []
    return [*complete_checkpoint(ctx, incomplete), *classes]


def complete_class(incomplete: str) -> list[str]:
    """The classification classes of the Transformers that headscope ships facts of."""
    return _beginning(_classes(), incomplete)


def complete_pattern(incomplete: str) -> list[str]:
    """Model types, or classes once a capital letter is typed."""
    return _beginning({*_classes(), *_classes().values()}, incomplete)


def complete_task(incomplete: str) -> list[str]:
    """The tasks, by headscope's names and by those of others."""
    names = next(names for names in _headings("words") if names.startswith(_TASK))
    return [name for name in names.split(", ")[1:] if name.startswith(incomplete)]


def complete_pooling(incomplete: str) -> list[str]:
    """The kinds of pooling."""
    return _beginning(_headings("pooling"), incomplete)


def complete_rules(ctx: typer.Context, incomplete: str) -> list[str]:
    """The IDs or names of the command's rules, for the last one of a list such as `HS101,HS3`."""
    before, comma, last = incomplete.rpartition(",")
    given = set(before.split(","))
    rules = [rule for rule in map(str.split, _headings("rules")) if _is_of(ctx.info_name, rule[0])]
    rest = [rule for rule in rules if not given & set(rule)]
    found = [next((name for name in rule if name.startswith(last)), "") for rule in rest]
    return [f"{before}{comma}{name}" for name in found if name]


def _is_of(command: str | None, rule: str) -> bool:
    """Whether a command runs a rule."""
    number = int(rule.removeprefix("HS"))
    return number in _OF_VERIFY if command == "verify" else number not in _OF_VERIFY and number not in _OF_SAVES


def complete_topic(incomplete: str) -> list[str]:
    """The topics of `explain`: rules, poolings, operations, ideas, words on the screens; or a class."""
    first = (" " if group == "rules" else "," for group in _GROUPS)
    names = [name.partition(end)[0] for group, end in zip(_GROUPS, first, strict=True) for name in _headings(group)]
    return [name for name in names if name.lower().startswith(incomplete.lower())] or complete_class(incomplete)


def complete_severity(incomplete: str) -> list[str]:
    """The severities of findings, the gravest first."""
    return [name for name in ("error", "warning", "note") if name.startswith(incomplete)]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that begin so, sorted, each once."""
    return sorted({name for name in names if name.startswith(incomplete) and _PLAIN.fullmatch(name)})


def _local(incomplete: str) -> list[str]:
    """The files and folders here that begin so; a shell offers them itself only where nothing else fits."""
    try:
        return _beginning((entry.name for entry in Path().iterdir()), incomplete)
    except OSError:
        return []


def _headings(group: str) -> list[str]:
    """The headings of a file of topics, each an ID and other names."""
    text = (_PACKAGE / "render" / "explanations" / f"{group}.md").read_text(encoding="utf-8")
    return _HEADING.findall(text)


def _classes() -> dict[str, str]:
    """The shipped classes, with the model type of each; none where they can't be read."""
    from zipfile import ZipFile  # slow to import, and seldom needed

    try:
        with ZipFile(_PACKAGE / "bundled" / "facts.zip") as shipped:
            found = json.loads(shipped.read("classes.json"))
    except Exception:  # a file that is missing or damaged: what zipfile, lzma and json raise for it
        return {}
    return dict(found)
