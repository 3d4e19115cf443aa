"""`verify_served`: the scores of a running server or an installed engine, against those of the checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import Any, Unpack

from headscope.core.facts.environment import tool_version
from headscope.core.source.checkpoint import examine
from headscope.core.source.request import Progress, is_in_memory
from headscope.errors import UsageError
from headscope.shared.serving.asking.address import ServerAddress
from headscope.shared.serving.asking.ask import ask
from headscope.shared.serving.asking.discovery import find_protocol
from headscope.shared.serving.comparing import AskAgain, compare_scores
from headscope.shared.serving.judging import own_activation
from headscope.shared.serving.running.process import ask_engine, find_runner
from headscope.shared.serving.sample_texts import SAMPLE_PAIRS, SAMPLE_TEXTS
from headscope.shared.serving.served_facts import ServedReport
from headscope.shell.options.calls import use_case
from headscope.shell.options.checkpoint import PlaceOptions
from headscope.shell.options.option import with_defaults
from headscope.shell.shown import Shown
from headscope.shell.values import make_request, options_of, read_names
from headscope.slices.loaded.options import ServedOptions, ServerOptions, TextOptions


class VerifiedServer(Shown, ServedReport):
    """The result of `verify_served`."""

    __slots__ = ()


@use_case
def verify_served(
    reference: str | PathLike[str],
    url: str | None = None,
    *,
    engine: str | None = None,
    progress: Progress | None = None,
    **options: Unpack[ServedOptions],
) -> VerifiedServer:
    """Compares the scores that a server or an engine gives for texts with those of the checkpoint that it should serve.

    The checkpoint is loaded with Transformers on the CPU and scores each text alone, in float32. Where the server's
    scores differ, variants of the head (another position, activation or function, a layer left out, another order of
    classes, a factor, other segment IDs, truncation) are computed, and one is named only if it alone gives all scores.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, or a local folder.
        url: The address of the server, such as `http://localhost:8000`.
        engine: Instead of a server, an installed engine, which is run in a separate process: `vllm`, `llama-cpp`,
            `onnx-runtime`, `sentence-transformers`, `transformers-js` or `transformers-pipeline`.
        options: See `ServedOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        Whether the scores are equal (`served.same`), what the server computes if not (`served.explanation.formula`),
        and how often the predicted class differs (`served.class_changes`).

    Raises:
        UsageError: An option is invalid.
        HeadscopeError: The checkpoint can't be run, or the server fails, can't be reached, or gives no scores.

    Example:
        >>> import headscope
        >>> try:
        ...     result = headscope.verify_served("my-checkpoint", "localhost:8000")
        ... except headscope.errors.UsageError as err:
        ...     print(err.message)
        localhost:8000 is not an http or https URL
    """
    if is_in_memory(reference):
        raise UsageError("verify_served takes a checkpoint, not a model in memory", "save it, and give the folder")
    tell = progress or (lambda sentence: None)
    python, logits = options.get("python"), options.get("logits", False)
    given_texts = read_texts(**with_defaults(TextOptions, options))
    asking = with_defaults(ServerOptions, options)
    if (url is None) == (engine is None):  # both, or neither
        raise UsageError("verify_served compares with either a URL or an engine", "give one of them")
    if engine is not None:
        find_runner(engine)
    if engine is not None and asking["dtype"] is not None:
        raise UsageError("headscope requests float32 of an engine that it runs", "leave out --dtype")
    request = make_request(reference, options_of(PlaceOptions, options))
    ask_again: AskAgain | None = None
    if url is not None:
        tell("asking the server what it is")
        server = server_address(url, asking)
        found = find_protocol(server, asking["protocol"])
        where = server.shown
        has_texts = found.can_score_texts
    else:
        where, has_texts = "", True
    from headscope.shared.serving.reference_scores import TextScorer, check_comparable, local_folder

    # Some servers score only pairs of texts.
    texts = given_texts or (tuple((text,) for text in SAMPLE_TEXTS) if has_texts else SAMPLE_PAIRS)
    checkpoint = examine("inspect", request, progress)
    check_comparable(checkpoint)
    report = checkpoint.report
    tell(f"scoring {len(texts)} texts with {report.model.class_name}")
    scorer = TextScorer.load(checkpoint, asking["batch_size"])
    activation = own_activation(report, checkpoint.manifest)
    own = scorer.reference(texts, report.model.labels, activation)
    if engine is None:
        tell(f"asking the server for {len(texts)} texts")
        answers = ask(server, found, texts, raw=logits)
        alone = replace(server, batch_size=1)
        ask_again = lambda places: ask(alone, found, [texts[place] for place in places], raw=logits)  # noqa: E731
    else:
        tell(f"running {len(texts)} texts in {engine}")
        answers = ask_engine(engine, local_folder(checkpoint), texts, raw=logits, python=python)
    if asking["dtype"] is not None:
        answers = replace(answers, dtype=asking["dtype"])
    return VerifiedServer(
        tool_version=tool_version(),
        reference=request.reference,
        url=where,
        engine=answers.engine,
        engine_version=answers.version,
        protocol=answers.protocol,
        model_class=report.model.class_name,
        formula=report.head.expression if report.head is not None else "",
        activation=activation,
        requested="logits" if logits or answers.is_raw else "scores",
        longest=scorer.longest(texts),
        served=compare_scores(own, answers, ask_again),
    )


def server_address(url: str, asking: Mapping[str, Any]) -> ServerAddress:
    """Makes the address of a server from its URL and the values of `ServerOptions`."""
    ca = None if asking["server_ca"] is None else fspath(asking["server_ca"])
    return ServerAddress(
        url, asking["server_token"], asking["server_timeout"], asking["batch_size"], model=asking["served_model"], ca=ca
    )


def read_texts(
    *,
    text: str | Iterable[str] | None,
    text_pair: str | Iterable[str] | None,
    data: str | PathLike[str] | None,
    text_column: str | Iterable[str] | None,
    split: str | None,
    limit: int,
) -> Sequence[tuple[str, ...]]:
    """Reads the texts from options, () without any. Raises UsageError for options that contradict each other."""
    is_given = text is not None or text_pair is not None
    if is_given and data is not None:
        raise UsageError("both texts and data were given", "give one of them")
    if is_given:
        return _pair_texts(text, text_pair)
    if data is None:
        if text_column is not None or split is not None:
            raise UsageError("the column of the texts, or a split, was given without data", "add --data FILE")
        return ()
    if text_column is None:
        raise UsageError("data was given without the column of its texts", "add --text-column COLUMN")
    columns = (text_column,) if isinstance(text_column, str) else read_names(text_column, "text_column")
    if len(columns) not in (1, 2):
        raise UsageError(f"{len(columns)} text columns were given", "give one, or two for pairs")
    if limit < 1:
        raise UsageError(f"--limit must be at least 1, not {limit}", "200 texts take about a minute with a base model")
    from headscope.shared.labeled.opening import open_data
    from headscope.shared.labeled.sample import sample_texts

    return sample_texts(open_data(fspath(data), split), columns, limit)


def _pair_texts(text: Any, text_pair: Any) -> Sequence[tuple[str, ...]]:
    """Pairs each text with its second one, if there are any. Raises UsageError for empty texts and unequal counts."""
    texts, seconds = _as_tuple(text), _as_tuple(text_pair)
    if not all(isinstance(part, str) and part.strip() for part in (*texts, *seconds)) or not (texts or seconds):
        raise UsageError("text is empty, or holds something other than texts", "give one text or several")
    if seconds and len(seconds) != len(texts):
        given = f"{len(seconds)} --text-pair for {len(texts)} --text"
        raise UsageError(given, "give one --text-pair for each --text")
    return tuple(zip(texts, seconds, strict=True)) if seconds else tuple((part,) for part in texts)


def _as_tuple(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
