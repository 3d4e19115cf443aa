"""Hostile checkpoints, built anew on every run: one file for each kind, all of them in `CASES`."""

from hostile.corpus import adapters, configs, files, headers, indexes, names, pickles, quantised
from hostile.corpus.case import Case

CASES: tuple[Case, ...] = (
    *files.CASES,
    *headers.CASES,
    *indexes.CASES,
    *pickles.CASES,
    *configs.CASES,
    *names.CASES,
    *adapters.CASES,
    *quantised.CASES,
)
