"""Check results in the formats of pipelines: GitHub annotations, JUnit, SARIF, Markdown for job summaries."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from headscope.checks.facts import CheckResult
from headscope.checks.screen import WORDS, tally_words, verdict_words
from headscope.core.facts import Finding, Severity
from headscope.core.facts.environment import documentation_address, tool_version
from headscope.core.facts.stored.checkpoint import merged_gaps, told_gaps
from headscope.core.facts.verdict import Verdict
from headscope.core.words.safe import code_span, plain, safe
from headscope.shared.topics import topics

_GITHUB = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}

RuleTitles = Sequence[tuple[str, str]]


def github_text(results: Sequence[CheckResult], rules: RuleTitles) -> str:
    """Writes workflow commands, which GitHub shows as annotations of the run."""
    return "".join(f"{line}\n" for result in results for line in _annotation_lines(result))


def _annotation_lines(result: CheckResult) -> Iterable[str]:
    kind = "notice" if result.verdict is Verdict.PASSED else "error"
    for finding in result.findings:
        title = f"{finding.id} {finding.title} ({result.reference})"
        yield _workflow_command(_GITHUB[finding.severity], title, f"{finding.message} {finding.remedy}")
    for gap in merged_gaps(result.not_determined):
        yield _workflow_command(kind, f"not determined: {gap.topic} ({result.reference})", gap.reason)
    yield _workflow_command(kind, result.reference, verdict_words(result))


def _workflow_command(kind: str, title: str, message: str) -> str:
    # The same escapes as in GitHub's @actions/core: a property, such as the title, ends at a colon or a comma.
    name = _escape_data(safe(title)).replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={name}::{_escape_data(safe(message))}"


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def junit_text(results: Sequence[CheckResult], rules: RuleTitles) -> str:
    """Writes one test suite for each model, with one test case for each rule that ran."""
    root = ElementTree.Element("testsuites", name="headscope")
    titles = dict(rules)
    for result in results:
        _add_suite(root, result, titles)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_suite(root: ElementTree.Element, result: CheckResult, titles: dict[str, str]) -> None:
    by_rule: dict[str, list[Finding]] = {}
    for finding in result.findings:
        by_rule.setdefault(finding.id, []).append(finding)
    gaps = {gap.rule: gap.reason for gap in result.not_determined}
    skipped = {gap.rule: gap.reason for gap in result.not_applicable}
    if result.verdict is Verdict.PASSED:  # then a gap can't hide what would fail, and an error would fail the job
        skipped |= {rule: f"not determined: {reason}" for rule, reason in gaps.items() if rule in result.rules}
        gaps = {}
    general = [gap for gap in result.not_determined if gap.rule not in result.rules]
    failing = [rule for rule, found in by_rule.items() if any(item.severity is Severity.ERROR for item in found)]
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=safe(f"{result.reference} ({result.profile.value})"),
        tests=str(len(result.rules) + len(general)),
    )
    for rule in result.rules:
        case = ElementTree.SubElement(suite, "testcase", classname="headscope", name=f"{rule} {titles.get(rule, '')}")
        if rule in failing:
            texts = [f"{item.message} {item.remedy}" for item in by_rule[rule]]
            failure = ElementTree.SubElement(case, "failure", message=safe(texts[0]), type="error")
            failure.text = safe("\n".join(texts))
        elif rule in gaps:
            ElementTree.SubElement(case, "error", message=safe(gaps[rule]), type="not determined")
        elif rule in skipped:
            ElementTree.SubElement(case, "skipped", message=safe(skipped[rule]))
        for item in by_rule.get(rule, []):
            if rule not in failing:
                out = ElementTree.SubElement(case, "system-out")
                out.text = safe(f"{item.severity.value}: {item.message}")
    for gap in general:
        case = ElementTree.SubElement(suite, "testcase", classname="headscope", name=safe(gap.topic))
        ElementTree.SubElement(case, "error", message=safe(gap.reason), type="not determined")
    # Readers hold the counts against the elements, and a rule may have findings and a gap.
    for count, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(len(suite.findall(f"testcase/{element}"))))


def sarif_text(results: Sequence[CheckResult], rules: RuleTitles) -> str:
    """Writes SARIF 2.1.0, which code scanning services read."""
    driver = {
        "name": "headscope",
        "semanticVersion": tool_version(),
        "rules": [_sarif_rule(name, title) for name, title in rules],
    }
    run = {
        "tool": {"driver": driver},
        "results": [_sarif_result(finding, result) for result in results for finding in result.findings],
        "invocations": [
            {
                "executionSuccessful": all(result.verdict is not Verdict.NOT_DETERMINED for result in results),
                "toolExecutionNotifications": [
                    {
                        "level": "error" if result.verdict is Verdict.NOT_DETERMINED else "note",
                        "message": {"text": safe(f"{result.reference}: {gap.topic}: {gap.reason}")},
                    }
                    for result in results
                    for gap in result.not_determined
                ],
            }
        ],
    }
    document = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2) + "\n"


def _sarif_rule(name: str, title: str) -> dict[str, Any]:
    """Describes a rule by its page of `headscope explain`, which code scanning shows beside each finding."""
    rule: dict[str, Any] = {"id": name, "shortDescription": {"text": title}}
    topic = next((item for item in topics() if item.id == name), None)
    if topic is None:
        return rule
    first = topic.text.split("\n\n")[0]
    if site := documentation_address():
        rule["helpUri"] = f"{site}rules.html#{name.lower()}"
    return rule | {
        "name": topic.names[0] if topic.names else name,
        "fullDescription": {"text": " ".join(first.split())},
        "help": {"text": topic.text, "markdown": topic.text},
    }


def _sarif_result(finding: Finding, result: CheckResult) -> dict[str, Any]:
    names = [{"fullyQualifiedName": safe(name), "kind": "member"} for name in finding.parameters]
    # `surrogatepass`: Python reads a folder name that is not UTF-8 with lone surrogates.
    uri = quote(result.reference, safe="/@", errors="surrogatepass")
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": uri}}}
    return {
        "ruleId": finding.id,
        "level": finding.severity.value,
        "message": {"text": safe(f"{finding.message} {finding.remedy}")},
        "locations": [location | ({"logicalLocations": names} if names else {})],
        "partialFingerprints": {"headscope/v1": f"{finding.id}:{','.join(finding.parameters)}"},
    }


def markdown_text(results: Sequence[CheckResult], rules: RuleTitles) -> str:
    """Writes a table of the models and a list of their findings, for a job summary."""
    lines = ["| model | verdict | findings |", "|---|---|---|"]
    for result in results:
        verdict = f"**{WORDS[result.verdict].lower()}** for {result.profile.value}"
        lines.append(f"| {code_span(result.reference)} | {verdict} | {plain(tally_words(result))} |")
    for result in results:
        if result.findings or result.not_determined:
            lines += ["", f"### {plain(result.reference)}", ""]
        lines += [
            f"- **{item.severity.value}** {item.id} {plain(item.title)}: {plain(item.message)} {plain(item.remedy)}"
            for item in result.findings
        ]
        lines += [f"- **not determined** {plain(gap)}" for gap in told_gaps(result.not_determined)]
    return "\n".join(lines) + "\n"


CI_FORMATS: dict[str, Callable[[Sequence[CheckResult], RuleTitles], str]] = {
    "github": github_text,
    "junit": junit_text,
    "sarif": sarif_text,
    "markdown": markdown_text,
}
"""The formats by the name that `--format` takes."""
