"""`write_card`, `verify_card`: reference scores in a file, and the scores of any engine compared with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Unpack

from headscope.core.facts.counting import counted, list_of
from headscope.core.facts.environment import tool_version
from headscope.core.outputs import check_output, write_over
from headscope.core.source.request import Progress, is_in_memory
from headscope.core.upstream.python import write_hint
from headscope.errors import HeadscopeError, Malformed, Unsupported, UsageError
from headscope.shared.serving.answers import Answers
from headscope.shared.serving.asking.address import ServerAddress
from headscope.shared.serving.asking.ask import ask
from headscope.shared.serving.asking.discovery import find_protocol
from headscope.shared.serving.asking.protocols import ServerProtocol
from headscope.shared.serving.card.facts import Card
from headscope.shared.serving.card.reading import (
    GivenScores,
    inputs_with_other_ids,
    read_card,
    read_scores,
    reference_of,
    texts_of,
)
from headscope.shared.serving.comparing import compare_scores
from headscope.shared.serving.served_facts import ServedScores
from headscope.shell.options.calls import use_case
from headscope.shell.options.checkpoint import AnyPath, PlaceOptions
from headscope.shell.options.option import with_defaults
from headscope.shell.values import make_request, options_of
from headscope.slices.loaded.options import ASKED_OPTIONS, CardOptions, ComparedOptions, ServerOptions, TextOptions
from headscope.slices.loaded.server_verification import VerifiedServer, read_texts, server_address

_BATCH = 16


@use_case
def write_card(
    reference: str | PathLike[str], output: AnyPath, *, progress: Progress | None = None, **options: Unpack[CardOptions]
) -> Card:
    """Writes the reference scores of a checkpoint to a card, with which engines are compared without the checkpoint.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, or a local folder.
        output: The file to write, such as `card.json`.
        options: See `CardOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        What the card says: inputs with their token IDs, logits and scores, tolerances, and the logits of known faults.

    Raises:
        UsageError: An option is invalid, or the file can't be written.
        HeadscopeError: The checkpoint can't be run.

    Example:
        >>> import headscope
        >>> try:
        ...     headscope.write_card("my-checkpoint", "no-such-folder/card.json")
        ... except headscope.errors.UsageError as err:
        ...     print(err.message)
        output no-such-folder/card.json: there is no folder no-such-folder
    """
    path = Path(fspath(output))
    check_output(path, "output")
    if is_in_memory(reference):
        raise UsageError("write_card takes a checkpoint, not a model in memory", "save it, and give the folder")
    from headscope.core.source.checkpoint import examine
    from headscope.shared.serving.card.writing import fit_card, make_card
    from headscope.shared.serving.judging import own_activation
    from headscope.shared.serving.reference_scores import check_comparable

    tell = progress or (lambda sentence: None)
    texts = read_texts(**with_defaults(TextOptions, options))
    checkpoint = examine("inspect", make_request(reference, options_of(PlaceOptions, options)), progress)
    check_comparable(checkpoint)
    tell(f"scoring the inputs of the card with {checkpoint.report.model.class_name}")
    card, text = fit_card(make_card(checkpoint, own_activation(checkpoint.report, checkpoint.manifest), texts, _BATCH))
    try:
        write_over(path, text)
    except OSError as err:
        raise UsageError(f"the card {path} could not be written: {err.strerror}", write_hint(err)) from err
    return card


@use_case
def verify_card(
    card: str | PathLike[str],
    url: str | None = None,
    *,
    progress: Progress | None = None,
    **options: Unpack[ComparedOptions],
) -> VerifiedServer:
    """Compares the scores of a server, or those in a file, with a card: without the checkpoint, and without PyTorch.

    Where scores differ, they are compared with the alternatives in the card, and one is named only if it alone gives
    all scores.

    Args:
        card: The file that `write_card` wrote.
        url: The address of the server, such as `http://localhost:8000`.
        options: See `ComparedOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        As from `verify_served`.

    Raises:
        UsageError: An option is invalid.
        HeadscopeError: The card or the scores can't be read, or the server fails or can't be reached.

    Example:
        >>> import headscope
        >>> try:
        ...     headscope.verify_card("card.json")
        ... except headscope.errors.UsageError as err:
        ...     print(err.message)
        verify_card compares with either a URL or a file of scores
    """
    scores, is_raw = options.get("scores"), options.get("logits", False)
    asking = with_defaults(ServerOptions, options)
    if (url is None) == (scores is None):
        raise UsageError("verify_card compares with either a URL or a file of scores", "give one of them")
    plain = with_defaults(ServerOptions, {})
    asked = [name for name in sorted(ASKED_OPTIONS) if asking[name] != plain[name]]
    if scores is not None and asked:
        raise UsageError(f"{list_of(asked, 3)}: only for a server, and scores were given", "leave out one of the two")
    known = read_card(Path(fspath(card)))
    where = ""
    if scores is not None:
        given = read_scores(Path(fspath(scores)), known, is_raw=is_raw)
        served, answers = _compare_given(known, given, asking["dtype"]), given.answers
    else:
        server = server_address(str(url), asking)
        found = find_protocol(server, asking["protocol"])
        (progress or (lambda sentence: None))(f"asking the server for {len(known.inputs)} texts")
        where = server.shown
        served, answers = _compare_server(known, server, found, asking["dtype"], is_raw=is_raw)
    # What the card doesn't have may be the reason where nothing is named.
    absent = [gap.topic for gap in known.not_determined]
    absent += [f"{counted(known.alternatives_left_out, 'alternative')} left out"] * bool(known.alternatives_left_out)
    return VerifiedServer(
        tool_version=tool_version(),
        reference=known.checkpoint or Path(fspath(card)).name,
        url=where,
        engine=answers.engine,
        engine_version=answers.version,
        protocol=answers.protocol,
        model_class=known.model_class,
        formula=known.formula or "",
        activation=known.activation,
        requested="logits" if answers.is_raw else "scores",
        longest=max(sum(item.attention_mask) for item in known.inputs),
        served=replace(served, notes=(*served.notes, *(f"not in the card: {what}" for what in absent))),
    )


def _compare_given(card: Card, given: GivenScores, dtype: str | None) -> ServedScores:
    """Compares scores from a file; those of inputs with other token IDs don't speak of the head."""
    answers = given.answers if dtype is None else replace(given.answers, dtype=dtype)
    whole = compare_scores(reference_of(card, range(len(card.inputs))), answers)
    others = inputs_with_other_ids(card, given)
    if not others:
        return whole
    where = f"the tokenizer gives other IDs for {len(others)} of {len(card.inputs)} inputs, first for input {others[0]}"
    if whole.same:
        return replace(whole, notes=(*whole.notes, where))
    alike = [at for at in range(len(card.inputs)) if at not in others]
    if not alike:
        return replace(whole, same=False, explanation=None, reason=f"{where}, so the head was not compared")
    part = replace(answers, items=tuple(answers.items[at] for at in alike))
    rest = compare_scores(reference_of(card, alike), part)
    of_rest = (
        "the scores of the others are the same" if rest.same else f"the others differ too: {rest.reason}".rstrip(": ")
    )
    reason = f"{where}; {of_rest}"
    return replace(rest, same=False, max_difference=whole.max_difference, reason=reason, notes=(*rest.notes, reason))


def _compare_server(
    card: Card, server: ServerAddress, protocol: ServerProtocol, dtype: str | None, *, is_raw: bool
) -> tuple[ServedScores, Answers]:
    """Compares the scores of a server for the inputs that it takes: texts, pairs, those beyond the tokenizer's limit.

    What it refuses is a note; if it fails at some, the others alone don't pass. Raises a HeadscopeError if it scores
    none.
    """
    texts, width = texts_of(card), len(card.labels)
    kinds: dict[tuple[int, bool], list[int]] = {}
    for at, text in enumerate(texts):
        kinds.setdefault((len(text), card.inputs[at].is_truncated), []).append(at)
    answered, notes, broken = dict[int, Answers](), list[str](), list[str]()
    failure: HeadscopeError | None = None
    for (count, is_truncated), rows in kinds.items():
        what = f"{counted(len(rows), 'pair' if count == 2 else 'text')}{' beyond the limit' if is_truncated else ''}"
        if not (protocol.can_score_pairs if count == 2 else protocol.can_score_texts):
            notes.append(f"{what}: the server doesn't score these")
            continue
        try:
            found = ask(server, protocol, [texts[at] for at in rows], raw=is_raw)
        except HeadscopeError as err:
            failure = err
            notes.append(f"{what}: {err.message}")
            # Many servers fail, instead of refusing, where a text is longer than they take.
            is_refusal = isinstance(err, Unsupported) or (is_truncated and not isinstance(err, Malformed))
            broken += () if is_refusal else notes[-1:]
            continue
        if count == 2 and width > 1 and all(len(item.scores) == 1 and not item.is_partial for item in found.items):
            notes.append(f"{what}: the server gives one score for each, and the checkpoint {width}")
            continue
        answered |= {at: replace(found, items=(item,)) for at, item in zip(rows, found.items, strict=True)}
    if not answered:
        raise failure or UsageError(f"the server scores none of the inputs: {'; '.join(notes)}", "write another card")
    rows = sorted(answered)
    first = answered[rows[0]]
    every = tuple(answered[at].items[0] for at in rows)
    given = [note for at in rows for note in answered[at].notes]
    answers = replace(first, items=every, notes=(*dict.fromkeys(given), *notes), dtype=dtype or first.dtype)

    def ask_again(places: Sequence[int]) -> Answers:
        parts = [ask(replace(server, batch_size=1), protocol, [texts[rows[at]]], raw=is_raw) for at in places]
        return replace(parts[0], items=tuple(part.items[0] for part in parts))

    served = compare_scores(reference_of(card, rows), answers, ask_again)
    if served.same and broken:
        served = replace(served, same=None, reason=f"the other scores are the same, and these failed: {broken[0]}")
    return served, answers
