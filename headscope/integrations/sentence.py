"""A check's result in a few lines of plain text, for logs and failed tests."""

from headscope.facts.check import CheckResult
from headscope.render.check import verdict_of
from headscope.render.fold import fold_keys
from headscope.render.safe import safe
from headscope.render.words import list_of

_NAMES = 8


def failure_sentence(result: CheckResult) -> str:
    """A result in a few lines: the verdict, the findings, the gravest first, and what was new after the load."""
    new = fold_keys(result.report.weights.new) if result.report else ()
    lines = [f"headscope: {result.reference}: {verdict_of(result)}"]
    lines += [f"{item.severity.value} {item.id}: {item.message} {item.remedy}" for item in result.findings]
    lines += [f"not determined: {reason}" for reason in dict.fromkeys(gap.reason for gap in result.not_determined)]
    lines += [f"new after the load: {list_of(new, _NAMES)}"] if new else []
    return "\n".join(safe(line) for line in lines)
