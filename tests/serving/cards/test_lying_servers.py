"""Servers that lie, and honest ones, compared with a card alone: named, open, never wrong, and honest ones pass."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from serving.cards.making import LIMIT, mean_before_pooler
from serving.classifiers import (
    LABELS,
    Forward,
    as_it_is,
    cut_to,
    scorer,
    softsign_pooler,
    with_other_weights,
    without_pooler,
    without_segments,
)
from serving.servers import Asked, Scores, send_bytes, send_json, serve_with, shuffled, squashed

import headscope
from headscope.errors import HeadscopeError
from tests.cli.command import Cli

DOCS = (Path(__file__).parents[3] / "docs" / "card.md").read_text(encoding="utf-8")
Row = Sequence[float]
Text = tuple[str, ...]


@dataclass(frozen=True)
class Server:
    """What a server does with texts: how it reads one, what it puts on logits, and what it does to a request's rows."""

    read: Callable[[Text], Text] = lambda text: text
    forward: Forward = as_it_is
    finish: Callable[[Row], Row] = squashed
    rows: Callable[[list[Any]], list[Any]] = lambda rows: rows
    labels: Sequence[str] = LABELS
    name: str = ""
    """The variant and the function by which headscope is to name the lie; "" for one that stays open."""
    says: str = ""
    """What headscope is to say of a lie that stays open."""


class StaleCache:
    """A cache that answers each request with the rows of the one before, as often as there are texts."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, rows: list[Any]) -> list[Any]:
        before, self.kept = self.kept or rows, rows
        return (before * len(rows))[: len(rows)]


def in_precision(dtype: torch.dtype) -> Forward:
    return lambda model, given: as_it_is(model.to(dtype), given).float()


def sigmoids(row: Row) -> Row:
    return [1 / (1 + math.exp(-one)) for one in row]


def noisy(row: Row) -> Row:
    return squashed([one + random.gauss(0, 2e-2) for one in row])


HONEST: dict[str, Server] = {
    "the checkpoint's scores": Server(),
    "names in capitals": Server(labels=[label.upper() for label in LABELS]),
    "names by number": Server(labels=["LABEL_0", "LABEL_1", "LABEL_2"]),
    "six digits": Server(finish=lambda row: [round(one, 6) for one in squashed(row)]),
    "float16": Server(forward=in_precision(torch.float16)),
    "bfloat16": Server(forward=in_precision(torch.bfloat16)),
    "rows in any order, with their names": Server(rows=lambda rows: [row[::-1] for row in rows]),
}
LIES: dict[str, Server] = {
    "softmax twice": Server(finish=lambda row: squashed(squashed(row)), name="as it is, softmax of softmax"),
    "sigmoid for softmax": Server(finish=sigmoids, name="as it is, sigmoid"),
    "sigmoid twice": Server(finish=lambda row: sigmoids(sigmoids(row)), name="as it is, sigmoid of sigmoid"),
    "no softmax": Server(finish=list, name="as it is, none"),
    "tanh": Server(finish=lambda row: [math.tanh(one) for one in row], name="as it is, tanh"),
    "half of the logits": Server(finish=lambda row: squashed([one / 2 for one in row]), name="as it is, softmax"),
    "names in another order": Server(labels=LABELS[::-1], name="as it is, softmax"),
    "without pooler": Server(forward=without_pooler, name="without dense and tanh, softmax"),
    "without pooler, no softmax": Server(forward=without_pooler, finish=list, name="without dense and tanh, none"),
    "a mean before the pooler": Server(
        forward=mean_before_pooler, name="mean over the tokens that are not padding, softmax"
    ),
    "softsign for tanh": Server(forward=softsign_pooler, says="no explanation found"),
    "no segments": Server(forward=without_segments, name="segment IDs 0, softmax"),
    "pairs swapped": Server(read=lambda text: text[::-1], name="pairs in the other order, softmax"),
    "pairs joined": Server(read=lambda text: (" ".join(text),), name="pairs joined to one text, softmax"),
    "the first text of a pair alone": Server(
        read=lambda text: text[:1], says="16 of 32 texts get the checkpoint's scores"
    ),
    "lower case": Server(read=lambda text: tuple(part.lower() for part in text), name="texts in lower case, softmax"),
    "a prompt in front": Server(read=lambda text: ("query: " + text[0], *text[1:]), says="no explanation found"),
    "spaces stripped": Server(
        read=lambda text: tuple(" ".join(part.split()) for part in text),
        says="31 of 32 texts get the checkpoint's scores; text 17 is the first other",
    ),
    "cut after 100 characters": Server(
        read=lambda text: tuple(part[:100] for part in text), says="30 of 32 texts get the checkpoint's scores"
    ),
    "other weights": Server(forward=with_other_weights, says="or slightly different weights"),
    "noise": Server(finish=noisy, says="the same text gets scores that differ"),
    "two digits": Server(finish=lambda row: [round(one, 2) for one in squashed(row)]),
    "shuffled batches": Server(rows=shuffled, says="30 texts get the scores of other texts (text 1 those of text"),
    "the first of a batch for all": Server(
        rows=lambda rows: rows[:1] * len(rows), says="texts get the scores of other texts (text 2 those of text 1)"
    ),
    "scores of the request before": Server(
        rows=StaleCache(), says="17 texts get the scores of other texts (text 5 those of text 1)"
    ),
    "one row too few": Server(rows=lambda rows: rows[1:] or rows, says="a row for each text was expected"),
    "the top class alone": Server(
        rows=lambda rows: [[max(row, key=lambda one: one["score"])] for row in rows], says="gave only the class with"
    ),
    "names in another language": Server(labels=["schlecht", "mittel", "gut"], says="the checkpoint bad, fair, good"),
    "a name twice": Server(labels=["bad", "bad", "good"], says="the label bad twice"),
    "a class left out": Server(rows=lambda rows: [row[:2] for row in rows], says="the checkpoint has 3"),
    "the same scores for all texts": Server(finish=lambda row: [0.2, 0.3, 0.5], says="hardly differ"),
}
"""None gives the checkpoint's scores."""

Handler = BaseHTTPRequestHandler
BROKEN: dict[str, tuple[Callable[[Handler], None], str]] = {
    "500": (lambda handler: send_json(handler, {"error": "out of memory"}, 500), "answered 500: out of memory"),
    "HTML": (lambda handler: send_bytes(handler, b"<html>", Content_Type="text/html"), "bytes of text/html"),
    "401": (lambda handler: send_json(handler, {"detail": "no"}, 401), "HEADSCOPE_SERVER_TOKEN"),
    "a redirect elsewhere": (
        lambda handler: send_bytes(handler, b"", 302, Location="http://example.org/"),
        "redirects",
    ),
    "slow": (lambda handler: sleep(3), "longer than"),
    "NaN": (lambda handler: send_bytes(handler, b'[[{"label": "bad", "score": NaN}]]'), "not a finite number"),
    "an empty list": (lambda handler: send_json(handler, []), "was expected"),
    "nothing": (lambda handler: send_bytes(handler, b""), "answered nothing"),
}


def answer_with(server: Server, logits: Scores) -> Callable[[Handler, Asked], None]:
    """Answers as a pipeline is served."""

    def answer(handler: Handler, asked: Asked) -> None:
        if asked.method != "POST":
            return send_json(handler, {"detail": "Not Found"}, 404)
        given = asked.body["inputs"]
        listed = given if isinstance(given, list) else [given]
        texts = [(one,) if isinstance(one, str) else tuple(one.values()) for one in listed]
        found = []
        for text in texts:
            scores = server.finish(logits(server.read(text)))
            found.append([{"label": name, "score": one} for name, one in zip(server.labels, scores, strict=True)])
        rows = server.rows(found)
        return send_json(handler, rows if isinstance(given, list) else rows[0])

    return answer


def judged(server: Server, checkpoint: str, card: Path) -> tuple[str, str]:
    """The verdict on a server, and what was told."""
    with serve_with(answer_with(server, scorer(checkpoint, cut_to(LIMIT, server.forward)))) as url:
        try:
            found = headscope.verify_card(card, url, protocol="inputs", server_timeout=60.0).served
        except HeadscopeError as err:
            return "open", f"{err.message} {err.hint}"
    told = " ".join((found.reason, *found.notes))
    if found.same:
        return "passed", f"{found.precision} {told}"
    if found.explanation is None:
        return "open", told
    named = f"{found.explanation.variant}, {found.explanation.activation}"
    return ("named" if named == server.name else "wrong"), f"{named} {found.explanation}"


def test_of_the_servers_none_is_explained_wrongly_and_the_honest_ones_pass(checkpoint: str, card: Path) -> None:
    counts: Counter[str] = Counter()
    for name, server in {**HONEST, **LIES}.items():
        verdict, told = judged(server, checkpoint, card)
        counts[verdict] += 1
        expected = "passed" if name in HONEST else "named" if server.name else "open"
        assert verdict == expected, (name, verdict, told)
        assert server.says in told, (name, told)
    assert counts == {"passed": 7, "named": 14, "open": 17}, counts
    assert "7 honest ones all pass" in DOCS and "Of 31 kinds of lies, 14 are named, 17" in " ".join(DOCS.split())


@pytest.mark.parametrize("fault", BROKEN)
def test_a_server_that_breaks_is_an_error_with_its_reason(fault: str, card: Path, cli: Cli) -> None:
    answer, words = BROKEN[fault]
    with serve_with(lambda handler, asked: answer(handler)) as url:
        command = "verify", "--card", card, "--url", url, "--protocol", "inputs", "--server-timeout", "1"
        told = cli(*command, code=3).words
    assert words in told and "Traceback" not in told, told


@pytest.mark.parametrize(
    ("content", "status", "same"),
    [(b'[[{"label": "bad", "score": NaN}]]', 200, None), (b"{}", 500, None), (b'{"error": "no pairs"}', 422, True)],
)
def test_what_a_server_fails_at_is_no_pass_and_what_it_refuses_is_a_note(
    content: bytes, status: int, same: bool | None, checkpoint: str, card: Path
) -> None:
    honest = answer_with(Server(), scorer(checkpoint, cut_to(LIMIT)))

    def answer(handler: Handler, asked: Asked) -> None:
        given = asked.body["inputs"] if asked.method == "POST" else ""
        if all(isinstance(one, str) for one in (given if isinstance(given, list) else [given])):
            honest(handler, asked)
        else:
            send_bytes(handler, content, status, Content_Type="application/json")

    with serve_with(answer) as url:
        found = headscope.verify_card(card, url, protocol="inputs", server_timeout=60.0).served
    assert found.same is same
    assert any("pairs: " in note for note in found.notes)
    assert same or "these failed: 16 pairs" in found.reason
