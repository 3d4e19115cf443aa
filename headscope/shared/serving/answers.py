"""Answers of an engine to texts: scores, over a network or from a separate process."""

from dataclasses import dataclass

TextOrPair = tuple[str, ...]
"""A text alone, or a pair."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Scores of one text. `labels` names them in the same order, () where the engine gave no names.

    `is_partial` says that the engine gave the scores of some classes alone, such as the most likely; `is_alone` that
    no other text was in the request. `top` is the engine's name of the class with the highest score, "" without one;
    `is_raw` says that the engine calls the scores logits.
    """

    scores: tuple[float, ...]
    labels: tuple[str, ...] = ()
    is_partial: bool = False
    is_alone: bool = False
    top: str = ""
    is_raw: bool = False


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of an engine, one entry for each text in their order.

    `is_raw` says that logits were requested, and not the engine's default. `engine` and `version` are as the engine
    gave them, "" where it didn't. `protocol` is how the scores were requested. `notes` say what was left out. `dtype`
    is the precision that the engine says it computes in, "" where it doesn't say. `is_indexed`: the engine said in
    which order its model has the classes. `is_run`: headscope ran the engine, on the checkpoint's own weights.
    """

    engine: str
    version: str
    protocol: str
    is_raw: bool
    items: tuple[Answer, ...]
    notes: tuple[str, ...] = ()
    dtype: str = ""
    is_indexed: bool = False
    is_run: bool = False
