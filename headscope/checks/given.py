"""Rules that a caller selects, as people write them in Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headscope.checks.rules import Ignore, Selection, every_rule, select as select_rules
from headscope.core.facts.counting import safe_repr, shortened
from headscope.errors import UsageError
from headscope.shell.options.option import is_of_kind
from headscope.shell.values import read_items, read_names


def read_selection(
    select: str | Iterable[str] = (),
    ignore: str | Iterable[str | Ignore] = (),
    fail_on: str = "error",
    *,
    command: str = "check",
) -> Selection:
    """Reads which rules of a command its options select. Raises UsageError for unknown rules."""
    # It is declared with a forward reference, which `use_case` can't evaluate.
    ignore = ignore if isinstance(ignore, str | bytes | dict) else read_items(ignore)
    if not is_of_kind(ignore, str | Iterable[str | Ignore]):
        found = f"ignore must be rules, not {type(ignore).__name__} {shortened(safe_repr(ignore))}"
        raise UsageError(found, 'write ignore="HS101" or ignore=["HS101"]')
    listed = read_rules(ignore, "ignore", command) if isinstance(ignore, str) else tuple(ignore)
    ignores = tuple(item if isinstance(item, Ignore) else Ignore(item) for item in listed)
    return select_rules(read_rules(select, "select", command), ignores, fail_on, command=command)


def read_rules(given: Any, option: str, command: str = "check") -> tuple[str, ...]:
    """Reads several rules, or one text `HS101,HS202` that lists them. Raises UsageError for a text without any."""
    names = tuple(filter(None, read_names(given, option)))
    if isinstance(given, str) and not names:
        some = [rule.id for rule in every_rule().values() if rule.command == command][:2]
        raise UsageError(f"{given!r} names no rule", f"write rules as {','.join(some)}")
    return names
