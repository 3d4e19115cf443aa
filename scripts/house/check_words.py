"""Checks the words of the project: `check_words.py` prints every place that breaks the house style, and their number.

Three checks: the patterns of scripts/house/words/house.txt, British spellings (the field writes American English), and
codespell's typos. Prose is the text of Markdown pages outside code, and in Python the docstrings, the comments and the
literals of several words. Generated parts of pages are checked in their source. British spellings are also found in the
names of modules and in what they define, tests included.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORDS = Path(__file__).resolve().with_name("words")
PAGES = ("*.md", "docs/*.md", "docs/adr/*.md", "benchmarks/*.md", "headscope/shared/explanations/*.md")
CODE = ("headscope", "scripts", "benchmarks")
SPELLED = ("headscope", "scripts", "benchmarks", "tests", "docs", "*.md", "Makefile", "pyproject.toml", "zensical.toml")
GENERATED = ("docs/rules.md", "docs/atlas.md", "docs/changes.md")
_GENERATED_PART = re.compile(r"<!-- (?:below|written by)[^\n]*-->.*?(?=<!-- above|\Z)", re.DOTALL)
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_ADDRESS = re.compile(r"(?<=\])\([^)\s]*\)|<[^<>\n]*>|https?://\S+")
_WORD = re.compile(r"(?<![\w.-])[A-Za-z]+(?:'[a-z]+)?(?![\w(=])")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_OPEN = "{}"


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose and the line where it begins."""

    line: int
    prose: str


@dataclass(frozen=True, slots=True, order=True)
class Hit:
    """A place that breaks the style."""

    file: str
    line: int
    found: str
    advice: str


def main(arguments: list[str]) -> int:
    """Prints the hits; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="Files to check (default: all of the project).")
    parser.add_argument("--count", action="store_true", help="Print only the number of hits of each kind.")
    given = parser.parse_args(arguments)
    hits = sorted([*find_hits(given.files or prose_files()), *find_british_names(given.files or code_files())])
    typos = [] if given.files else find_typos()
    if not given.count:
        print(*(f"{hit.file}:{hit.line}: {hit.found!r}: write {hit.advice}" for hit in hits), *typos, sep="\n")
    spelling = sum(hit.advice.startswith("in American") for hit in hits)
    print(f"house style {len(hits) - spelling}, British spellings {spelling}, typos {len(typos)}", file=sys.stderr)
    return int(bool(hits or typos))


def prose_files() -> list[Path]:
    """Every page and module whose prose is written by hand."""
    pages = (page for pattern in PAGES for page in ROOT.glob(pattern))
    modules = (module for package in CODE for module in (ROOT / package).rglob("*.py"))
    generated = {ROOT / name for name in GENERATED}
    return sorted({*pages, *modules} - generated)


def code_files() -> list[Path]:
    """Every module, those of the tests too."""
    return sorted(module for package in (*CODE, "tests") for module in (ROOT / package).rglob("*.py"))


def find_hits(files: Iterable[Path]) -> Iterator[Hit]:
    """Every hit of a house pattern and every British spelling."""
    for file in files:
        source, name = file.read_text(encoding="utf-8"), str(file.resolve().relative_to(ROOT))
        for text in python_prose(source) if file.suffix == ".py" else page_prose(source):
            yield from (Hit(name, text.line + at, found, advice) for at, found, advice in faults(text.prose))


def faults(prose: str) -> Iterator[tuple[int, str, str]]:
    """Lines after the first, what was found there, and what to write instead."""
    for pattern, advice in house_patterns():
        for match in pattern.finditer(prose):
            yield prose.count("\n", 0, match.start()), " ".join(match[0].split()), advice
    for match in _WORD.finditer(prose):
        american = american_spellings().get(match[0].lower())
        if american:
            yield prose.count("\n", 0, match.start()), match[0], f"in American English: {american}"


def find_british_names(files: Iterable[Path]) -> Iterator[Hit]:
    """Every British spelling in the name of a module, and in the names that it defines."""
    for file in (file for file in files if file.suffix == ".py"):
        name = str(file.resolve().relative_to(ROOT))
        for line, word in ((1, file.stem), *_defined(ast.parse(file.read_text(encoding="utf-8")))):
            for part in _PART.findall(word):
                if american := american_spellings().get(part.lower()):
                    yield Hit(name, line, word, f"in American English: {american}")


def _defined(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name


@cache
def house_patterns() -> list[tuple[re.Pattern[str], str]]:
    """Each pattern of the house style with its advice."""
    lines = (WORDS / "house.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.rsplit("->", 1) for line in lines if line.strip() and not line.startswith("#"))
    return [(_compiled(pattern.strip()), advice.strip()) for pattern, advice in pairs]


def _compiled(pattern: str) -> re.Pattern[str]:
    """A space matches any whitespace, except in a look-behind, whose width is fixed."""
    behind, rest = re.fullmatch(r"((?:\(\?<[=!][^)]*\))?)(.*)", pattern).groups()  # type: ignore[union-attr]
    return re.compile(behind + rest.replace(" ", r"\s+"), re.IGNORECASE)


@cache
def american_spellings() -> dict[str, str]:
    """From British to American, as codespell lists them."""
    import codespell_lib

    dictionary = Path(codespell_lib.__file__).parent / "data" / "dictionary_en-GB_to_en-US.txt"
    pairs = (line.split("->", 1) for line in dictionary.read_text(encoding="utf-8").splitlines() if "->" in line)
    return {british: american.strip(" ,") for british, american in pairs if british not in known_words()}


@cache
def known_words() -> frozenset[str]:
    lines = (WORDS / "known.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def page_prose(source: str) -> Iterator[Text]:
    """A Markdown page without its code, addresses and generated parts."""
    for pattern in (_GENERATED_PART, _FENCE, _INLINE, _ADDRESS):
        source = pattern.sub(_blank, source)
    yield Text(1, source)


def _blank(match: re.Match[str]) -> str:
    """As many lines as before, so that line numbers stay right."""
    return "X" + "\n" * match[0].count("\n")


def python_prose(source: str) -> Iterator[Text]:
    """Docstrings, messages and comments of a module, without the code in them."""
    for text in (*_literals(ast.parse(source)), *_comments(source)):
        yield Text(text.line, _INLINE.sub(_blank, text.prose))


def _literals(tree: ast.Module) -> Iterator[Text]:
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            shown = "".join(str(part.value) if isinstance(part, ast.Constant) else _OPEN for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            shown = node.value
        else:
            continue
        if " " in shown.strip():
            yield Text(node.lineno, shown)


def _comments(source: str) -> Iterator[Text]:
    """Comments, those on lines that follow each other joined."""
    start, lines, last = 0, list[str](), 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != last + 1:
            if lines:
                yield Text(start, "\n".join(lines))
            start, lines = token.start[0], []
        lines.append(token.string.lstrip("# "))
        last = token.start[0]
    if lines:
        yield Text(start, "\n".join(lines))


def find_typos() -> list[str]:
    """What codespell finds in every file of the project, tests included."""
    paths = [str(path) for pattern in SPELLED for path in sorted(ROOT.glob(pattern))]
    command = [sys.executable, "-m", "codespell_lib", "--builtin", "clear,rare", "--skip", "*.json,*.csv,*.svg,*.out"]
    command += ["--ignore-words", str(WORDS / "known.txt"), *paths]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
