"""Which class of a model a label of the data means: by id, by name, by spelling, or by a well-known other word."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence

from headscope.facts.results.labeled import Fit

_SYNONYMS = (
    ("negative", "neg", "negativ", "negatif", "negativo", "negativa"),
    ("positive", "pos", "positiv", "positif", "positivo", "positiva"),
    ("neutral", "neu", "neut", "neutre", "neutro", "neutrale"),
    ("entailment", "entail", "entails", "entailed"),
    ("contradiction", "contradict", "contradicts"),
    ("notentailment", "nonentailment", "noentailment"),
    ("notspam", "nonspam", "nospam", "ham"),
    ("nottoxic", "nontoxic"),
    ("true", "yes"),
    ("false", "no"),
)
_WORD = {word: words[0] for words in _SYNONYMS for word in words}
_NUMBERED = re.compile(r"(?:label|class)?(\d{1,9})")
PLACEHOLDER = re.compile(r"LABEL_(\d{1,9})")


def plain_label(name: str) -> str:
    """A name without case, spaces and punctuation; a name of nothing else stays as it is."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    kept = "".join(sign for sign in folded if sign.isalnum())
    return kept or folded.strip()


def word_of(name: str) -> str:
    """The word that stands for a name and its well-known variants; `LABEL_0`, `class 0` and `0` are one."""
    found = plain_label(name)
    numbered = _NUMBERED.fullmatch(found)
    return str(int(numbered[1])) if numbered else _WORD.get(found, found)


Form = Callable[[str], str]
_LEVELS: tuple[tuple[Fit, Form], ...] = ((Fit.NAME, str), (Fit.SPELLING, plain_label), (Fit.SYNONYM, word_of))


def fit_names(given: Sequence[str], labels: Sequence[str]) -> tuple[tuple[int | None, Fit], ...]:
    """For each given name the class that it means and how it was found; a name that fits several classes fits none."""
    tables = [(fit, form, _by_form(labels, form)) for fit, form in _LEVELS]
    return tuple(_fitted(name, tables) for name in given)


def _by_form(labels: Sequence[str], form: Form) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for number, label in enumerate(labels):
        found[form(label)].append(number)
    return found


def _fitted(name: str, tables: Sequence[tuple[Fit, Form, dict[str, list[int]]]]) -> tuple[int | None, Fit]:
    for fit, form, by_form in tables:
        found = by_form.get(form(name), [])
        if found:
            return (found[0], fit) if len(found) == 1 else (None, Fit.NONE)
    return None, Fit.NONE
