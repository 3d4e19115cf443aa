"""The questions of docs/questions.md as pages of the site: one page for each, and an index with the first sentences."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ANCHOR = re.compile(r'<a id="([^"]+)"></a>\n*\Z')
_SENTENCE = re.compile(r"(.+?[.!?:])(?:\s|$)", re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|/|#)([^)]+)\)")
_OWN_ANCHOR = re.compile(r"\]\(#([^)]+)\)")
_FENCE = re.compile(r"^```")
FOLDER = "questions"


@dataclass(frozen=True, slots=True)
class Question:
    """One section: its title, further names under which links know it, and its text."""

    title: str
    anchors: tuple[str, ...]
    body: str

    @property
    def slug(self) -> str:
        """The name of its page, and of its heading on a page of all questions."""
        return slug_of(self.title)

    @property
    def short_answer(self) -> str:
        """The first sentence of the answer."""
        first = _SENTENCE.match(self.body.strip())
        sentence = " ".join((first[1] if first else self.body.partition("\n\n")[0]).split())
        return re.sub(r":$", ".", sentence)


def slug_of(title: str) -> str:
    """The name that the site gives to a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def question_pages(text: str) -> dict[str, str]:
    """The pages by their names, of the text of docs/questions.md: the index first, then a page for each question."""
    opening, questions = read_questions(text)
    if not questions:
        return {}
    places = {name: question.slug for question in questions for name in (question.slug, *question.anchors)}
    pages = {"questions.md": _index(opening, questions)}
    for question in questions:
        body = _OWN_ANCHOR.sub(lambda found: f"]({places.get(found[1], found[1])}.md)", question.body)
        body = _LINK.sub(lambda found: f"](../{found[1]})" if not _is_sibling(found[1], places) else found[0], body)
        pages[f"{FOLDER}/{question.slug}.md"] = (
            f"# {question.title}\n\n{body.strip()}\n\n[All questions](../questions.md)\n"
        )
    return pages


def read_questions(text: str) -> tuple[str, list[Question]]:
    """The text before the first question, and the questions."""
    parts = list(_sections(text))
    opening, anchors = _without_anchor(parts[0][1])
    questions = []
    for title, body in parts[1:]:
        kept, following = _without_anchor(body)
        questions.append(Question(title, anchors, kept))
        anchors = following
    return opening, questions


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Title and text of what is before the first `## ` and of each section; a `## ` in a code block is code."""
    title, is_code = "", False
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        is_code ^= bool(_FENCE.match(line))
        if line.startswith("## ") and not is_code:
            yield title, "".join(lines)
            title, lines = line.removeprefix("## ").strip(), []
        else:
            lines.append(line)
    yield title, "".join(lines)


def _without_anchor(body: str) -> tuple[str, tuple[str, ...]]:
    """A text without the anchor at its end, which belongs to the next section, and the anchor's name."""
    found = _ANCHOR.search(body)
    return (body[: found.start()], (found[1],)) if found else (body, ())


def _index(opening: str, questions: list[Question]) -> str:
    title = opening.strip().partition("\n")[0]
    parts = [
        title,
        "Short answers; each question has a page with the details, as real output of headscope and code that runs.",
    ]
    for question in questions:
        parts += [f'<a id="{name}"></a>' for name in question.anchors]
        parts += [f"## [{question.title}]({FOLDER}/{question.slug}.md)", question.short_answer]
    return "\n\n".join(parts) + "\n"


def _is_sibling(link: str, places: dict[str, str]) -> bool:
    return link.removesuffix(".md") in places.values()
