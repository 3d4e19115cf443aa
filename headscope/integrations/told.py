"""A check's result in a few lines of plain text, for logs and failed tests."""

from headscope.facts.check import CheckResult
from headscope.render.check import verdict_of


def told(result: CheckResult) -> str:
    """A result in a few lines: the verdict, what was new after the load, and the findings."""
    new = result.report.weights.new if result.report else ()
    lines = [f"headscope: {result.reference}: {verdict_of(result)}"]
    lines += [f"new after the load: {', '.join(new)}"] if new else []
    lines += [f"{item.severity.value} {item.id}: {item.message} {item.remedy}" for item in result.findings]
    return "\n".join(lines)
