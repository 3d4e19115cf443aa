"""Transformers kept silent for the length of a call: its log, its progress bars, its warnings."""

import logging as python_logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

from transformers.utils import logging

_ONE_AT_A_TIME = RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Silences Transformers inside: nothing reaches the terminal, and its settings are restored afterwards.

    One thread at a time: these settings, and those that its loader changes while it builds a model, belong to the
    process.
    """
    with _ONE_AT_A_TIME:
        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        _set_verbosity(python_logging.CRITICAL)
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # upstream has no annotations
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            _set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # upstream has no annotations


def _set_verbosity(level: int) -> None:
    """Sets the log level unless it is set already."""
    # Every change, even to the same level, makes all loggers of the process look up theirs again.
    if logging.get_verbosity() != level:
        logging.set_verbosity(level)
