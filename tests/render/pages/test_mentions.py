"""Markdown of others' names notifies nobody: after a real parser has rendered it, no text node holds a mention."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt
from reports import bert, with_model

from headscope.checks.ci import markdown_text
from headscope.checks.facts import Subject
from headscope.checks.rules import judge, select
from headscope.core.facts.built import BuiltFacts, ConfigFacts
from headscope.facts import Profile

_MENTION = re.compile(r"(?<![\w/])@[a-z0-9](?:[a-z0-9-]{0,38})", re.IGNORECASE)
"""GitHub's rule: an @ that no word character precedes, and a name."""


class Outside(HTMLParser):
    """The text outside code, where GitHub looks for mentions."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.texts = 0, list[str]()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.inside += tag == "code"

    def handle_endtag(self, tag: str) -> None:
        self.inside -= tag == "code"

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.texts.append(data)


@pytest.mark.parametrize("name", ["@octocat", "x @octocat/team", "a&#64;octocat", "`@octocat", "a|@octocat\n@octocat"])
def test_a_name_of_others_mentions_nobody(name: str) -> None:
    report = with_model(bert(), labels=(name, name), num_labels=2, labels_are_placeholders=True)
    evil = replace(report, checkpoint=replace(report.checkpoint, reference=name))
    subject = Subject(evil, Profile.INFERENCE, ConfigFacts(), BuiltFacts(2))
    result = judge(subject, select(("HS202",)))
    assert result.findings
    page = Outside()
    page.feed(MarkdownIt("commonmark").enable("table").render(markdown_text([result], ())))
    assert "octocat" in "".join(page.texts)
    assert not [text for text in page.texts if _MENTION.search(text)]
