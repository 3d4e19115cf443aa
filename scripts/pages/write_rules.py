"""Writes docs/rules.md from the topics that `headscope explain` shows; with `--check`, compares."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from headscope.facts import Profile
from headscope.shared.topics import Topic, topics
from headscope.slices.lookup.explained_screen import severities_for, severity_words
from scripts.generated import write_or_compare

_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "rules.md"


def main(arguments: list[str]) -> int:
    """Writes the page, or says whether it is as it would be written."""
    return write_or_compare(PAGE, rules_page(), arguments)


def rules_page() -> str:
    """The page of all rules as Markdown, with an anchor for each id."""
    sentence = "Each rule has a stable id; `headscope explain HS102` shows one of these sections."
    rules = [topic for topic in topics() if topic.group == "rules"]
    lines = ["# Rules of `headscope check`", "", *_severity_table(rules), "", sentence, ""]
    for topic in rules:
        title = f"## {topic.id} {topic.names[0]}: {topic.title}"
        lines += [f'<a id="{topic.id.lower()}"></a>', "", title, "", _as_text(topic.text), ""]
    return "\n".join(lines)


def _as_text(text: str) -> str:
    """A text outside of whose code a token such as `<eos>` isn't an element of HTML."""
    parts = _CODE.split(text)
    return "".join(part if at % 2 else part.replace("<", "&lt;") for at, part in enumerate(parts))


def _severity_table(rules: Sequence[Topic]) -> Iterator[str]:
    """What each rule finds for each profile, as Markdown."""
    yield from ("| rule | name | finds | training | inference |", "|---|---|---|---|---|")
    for topic in rules:
        found = [severity_words(severities_for(topic, profile)) for profile in Profile]
        yield f"| [{topic.id}](#{topic.id.lower()}) | {' | '.join((topic.names[0], topic.title, *found))} |"
    yield ""
    yield "How grave a finding is depends on the profile: `check --for training` or `check --for inference`."
    yield "The rules of `verify` and of saves (HS70x, HS71x) have no profile."
