"""The rules of `check`, and how they are put together to a verdict. Sees facts only: no torch, no network."""

from headscope.checks.rules import engines, kind, loaded, saved, tokens, training, trial, values, weights
from headscope.checks.rules.judgment import judge
from headscope.checks.rules.labeled import data, labels, predictions
from headscope.checks.rules.rule import RULES
from headscope.checks.rules.selection import Ignore, Selection, named_in, select

__all__ = [
    "RULES",
    "Ignore",
    "Selection",
    "data",
    "engines",
    "judge",
    "kind",
    "labels",
    "loaded",
    "named_in",
    "predictions",
    "saved",
    "select",
    "tokens",
    "training",
    "trial",
    "values",
    "weights",
]
