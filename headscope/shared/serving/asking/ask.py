"""Requests for the scores of texts: batches, and answers in one order of the classes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from headscope.errors import Malformed, NetworkError, Unsupported
from headscope.shared.serving.answers import Answer, Answers, TextOrPair
from headscope.shared.serving.asking.address import ServerAddress, one_line
from headscope.shared.serving.asking.exchange import Exchange, ServerReply
from headscope.shared.serving.asking.protocols import ServerProtocol, Way, Ways, ways_of
from headscope.shared.serving.asking.rows import wrong_answer

_BAD_REQUEST, _TOO_LARGE, _UNPROCESSABLE, _FAILED = 400, 413, 422, 500
_REFUSALS = (_BAD_REQUEST, _UNPROCESSABLE, 424, _FAILED)
_BATCH = re.compile(r"batch|too many|at most|too long|too large|maximum number|max_items", re.IGNORECASE)
_SUMS_TO_ONE = 1e-3
_NUMBERED = re.compile(r"LABEL_(\d{1,9})")


def ask(server: ServerAddress, protocol: ServerProtocol, texts: Sequence[TextOrPair], *, raw: bool = False) -> Answers:
    """Requests the scores of texts, or of pairs of texts, from a server; with `raw`, the logits.

    Raises Unsupported where the protocol can't be asked for this, NetworkError where the server fails, and Malformed
    where its answer is not what the protocol says.
    """
    if len({len(text) for text in texts}) > 1:
        raise ValueError("texts and pairs of texts need separate calls")
    ways, pairs = ways_of(protocol.name), bool(texts) and len(texts[0]) == 2
    way = ways.pairs if pairs else ways.texts
    if way is None or (protocol.is_reranker and not pairs):
        told = ways.refusal or f"the model {one_line(protocol.model)} gives scores to pairs only"
        raise Unsupported(told, "ask another engine" if pairs else "pass pairs of texts")
    if raw and not protocol.can_give_logits(pairs):
        raise Unsupported(
            f"{ways.title} can't be asked for logits of {'pairs' if pairs else 'texts'}", "ask for scores"
        )
    notes = [ways.note] if ways.note else []
    most = protocol.most_texts or server.batch_size
    batches = Batches(protocol, ways, way, raw, min(server.batch_size, most))
    with Exchange(server) as exchange:
        runs = [list(run) for _, run in groupby(texts, key=lambda text: text[0])] if way.one_query else [list(texts)]
        items = [item for run in runs for item in batches.answers(exchange, run)]
    if batches.was_refused:
        notes.append(f"the server refused batches of more than {batches.size}")
    aligned = _align_answers(items, protocol.labels)
    # Some servers give logits and probabilities in one answer; what is called logits is compared with logits.
    is_raw = (raw or all(item.is_raw for item in aligned)) and not _are_probabilities(aligned)
    if raw and not is_raw:
        notes.append("logits were requested, but the server answered with probabilities")
    if batches.told:
        notes.append(f"{batches.told}; the scores are those of {batches.ways.title}")
    engine, name = protocol.engine or protocol.name, batches.protocol.name
    dtype, is_indexed = protocol.dtype or ways.dtype, bool(protocol.labels)
    return Answers(engine, protocol.version, name, is_raw, aligned, tuple(notes), dtype, is_indexed)


@dataclass(slots=True)
class Batches:
    """Requests of several texts each; the size becomes smaller where the server refuses it.

    Where it refuses even the first text, they go on with the protocol that is there for this; `told` says what it said.
    """

    protocol: ServerProtocol
    ways: Ways
    way: Way
    raw: bool
    size: int
    was_refused: bool = False
    told: str = ""

    def answers(self, exchange: Exchange, texts: Sequence[TextOrPair]) -> Iterator[Answer]:
        """Yields the answers to texts that may share a request."""
        at = 0
        while at < len(texts):
            batch = texts[at : at + self.size]
            url = self.way.path(self.protocol, self.raw)
            reply = exchange.post(url, self.way.body(self.protocol, batch, self.raw))
            is_refused = reply.status == _TOO_LARGE or (
                reply.status in _REFUSALS and (self.ways.lists_may_fail or _BATCH.search(reply.says) is not None)
            )
            if len(batch) > 1 and is_refused:
                self.size, self.was_refused = len(batch) // 2, True
                continue
            if reply.status == _BAD_REQUEST and self.ways.instead and self.way is self.ways.texts:
                self.told = f"{reply.where} answered {reply.status}: {reply.says}"
                self.protocol = replace(self.protocol, name=self.ways.instead)
                self.ways = ways_of(self.ways.instead)
                self.way = self.ways.texts or self.way
                continue
            _check_refusal(reply, batch)
            yield from (replace(item, is_alone=len(batch) == 1) for item in self.way.read(reply.json(), len(batch)))
            at += len(batch)


def _check_refusal(reply: ServerReply, batch: Sequence[TextOrPair]) -> None:
    """Raises NetworkError for a refusal that fewer texts at a time may avoid, Unsupported for one of a single text."""
    told = f"{reply.where} answered {reply.status}{f': {reply.says}' if reply.says else ''}"
    if len(batch) > 1 and reply.status >= _FAILED:
        raise NetworkError(told, "check the server's log; --batch-size 1 sends each text alone")
    if len(batch) == 1 and reply.status in (_BAD_REQUEST, _TOO_LARGE, _UNPROCESSABLE):
        size = sum(map(len, batch[0]))
        hint = f"if its limit is shorter than this text of {size} characters, pass shorter ones with --text or --data"
        raise Unsupported(told, hint)


def _align_answers(items: Sequence[Answer], known: tuple[str, ...]) -> tuple[Answer, ...]:
    """Puts the scores into one order of the classes. Raises Malformed where they aren't of the same classes."""
    whole = [item for item in items if not item.is_partial]
    if not whole:
        return tuple(items)
    classes = set(whole[0].labels)
    for item in whole:
        if len(item.scores) != len(whole[0].scores):
            raise wrong_answer(f"{len(whole[0].scores)} scores for one text, {len(item.scores)} for another", "as many")
        if set(item.labels) != classes:
            odd = ", ".join(one_line(label) for label in sorted(classes ^ set(item.labels))[:5])
            raise wrong_answer(f"labels that differ between texts ({odd})", "the same labels for each text")
    if known and classes and classes != set(known):
        raise Malformed(
            "the labels of the scores are not those that the server says its model has", "check what the URL leads to"
        )
    order = known if known and classes else tuple(sorted(classes, key=_label_sort_key))
    aligned = []
    for item in items:
        if item.is_partial or not item.labels:
            aligned.append(item)
            continue
        scores = dict(zip(item.labels, item.scores, strict=True))
        aligned.append(replace(item, scores=tuple(scores[label] for label in order), labels=order))
    return tuple(aligned)


def _label_sort_key(label: str) -> tuple[int, int, str]:
    # By number: LABEL_10 comes after LABEL_9, and named classes after both.
    numbered = _NUMBERED.fullmatch(label)
    return (0, int(numbered[1]), "") if numbered else (1, 0, label)


def _are_probabilities(items: Sequence[Answer]) -> bool:
    """True if scores that were requested as logits show that the server ignored the request."""
    if any(item.is_partial for item in items):
        return all(0 <= score <= 1 for item in items for score in item.scores)
    return bool(items) and all(
        len(item.scores) > 1 and min(item.scores) >= 0 and abs(sum(item.scores) - 1) < _SUMS_TO_ONE for item in items
    )
