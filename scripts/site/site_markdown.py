"""Markdown of docs/ as Zensical gets it: with a description for search engines, and alternatives as tabs."""

import json
import re
from html import escape

_LABELED = re.compile(r"\*\*(CLI|Python|CI)\*\*\n\n(```.*?^```\n)", re.DOTALL | re.MULTILINE)
_ALTERNATIVES = re.compile(rf"(?:^{_LABELED.pattern}\n?){{2,}}", re.DOTALL | re.MULTILINE)
_BLOCKS = re.compile(r"^```.*?^```$|^<!--.*?-->$", re.DOTALL | re.MULTILINE)
_ROWS = re.compile(r"^\|.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_LONGEST = 200


def staged(text: str) -> str:
    """A page as it is built. Zensical, unlike GitHub, shows the escape of a bar in the code of a table."""
    text = _ROWS.sub(lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text)
    described = json.dumps(escape(description_of(text)))  # the theme writes it into an attribute as it is
    return f"---\ndescription: {described}\n---\n\n{with_tabs(text)}" if described != '""' else with_tabs(text)


def with_tabs(text: str) -> str:
    """Blocks that follow each other under `**CLI**`, `**Python**` and `**CI**`, as tabs."""
    return _ALTERNATIVES.sub(lambda found: "".join(_tab(*one) for one in _LABELED.findall(found[0])) + "\n", text)


def _tab(label: str, block: str) -> str:
    indented = "".join(f"    {line}" if line.strip() else line for line in block.splitlines(keepends=True))
    return f'=== "{label}"\n\n{indented}\n'


def description_of(text: str) -> str:
    """The first paragraph of a page without marks, as much of it as search engines show."""
    paragraphs = (part.strip() for part in _BLOCKS.sub("", text).split("\n\n"))
    first = next((part for part in paragraphs if part and not part.startswith(("#", "<", "|", "!", "-", "[Atlas"))), "")
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    plain = re.sub(r"[`*]|\\(?=[\[\]_*|])", "", plain).replace("&lt;", "<")
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST].rsplit(' ', 1)[0]} ..."
