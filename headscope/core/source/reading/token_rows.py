"""Scores that are rows of a language-model head: whose tokens they are, and the trace with few tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headscope.core.facts import CheckpointManifest, Gap, GapTopic, HeadTrace, Stage, TokenRow, TokenRows
from headscope.core.source.request import Request
from headscope.errors import HeadscopeError, NotFound, Unsupported, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headscope.core.facts.heads.head import Shape
    from headscope.core.model.classes.model_request import Choice
    from headscope.core.trace import TracedHead


def trace_token_rows(skeleton: PreTrainedModel, choice: Choice) -> tuple[TracedHead, Choice]:
    """Traces the head of a reranker; also gives the choice that makes the same model with a small vocabulary.

    A head does not depend on the size of the vocabulary, and a proof on random values would need all its rows. So a
    copy with few tokens is traced, and its sizes and rows get back the names of the checkpoint's. Raises Unsupported if
    no such copy can be made.
    """
    from headscope.core.model.classes.reduced_config import shallow_twins
    from headscope.core.model.classes.token_rows import with_few_tokens
    from headscope.core.model.quiet import quiet
    from headscope.core.trace import TokenNames, trace_head
    from headscope.core.upstream.torch import on_meta
    from headscope.core.upstream.transformers import text_config_of

    cls, config, size = with_few_tokens(choice.cls, choice.config, len(choice.rows))
    whole = int(text_config_of(choice.config).vocab_size)
    tokens = [row.token or f"id_{row.id}" for row in choice.rows]
    texts = zip(range(size - len(tokens), size), tokens, strict=True)
    names = TokenNames(rows=tuple(texts), vocabulary=whole)
    small = replace(choice, cls=cls, config=config)
    try:
        with quiet(), on_meta():
            model = cls(config).train(False)
    except Exception as err:  # whatever a foreign constructor raises
        raise Unsupported(f"{cls.__name__} cannot be made with {size} tokens: {type(err).__name__}: {err}", "") from err
    with quiet():
        traced = trace_head(model, choice.task, names, prove=True, twins=lambda: shallow_twins(model))
    own, other = ({name: tuple(item.shape) for name, item in of.named_parameters()} for of in (model, skeleton))
    for name in traced.trace.parameters:
        if name not in other or tuple(whole if axis == size else axis for axis in own.get(name, ())) != other[name]:
            raise Unsupported(f"{name} has another shape in a copy of the model with fewer tokens", "")
    return replace(traced, trace=_with_true_tokens(traced.trace, choice, size, whole)), small


def _with_true_tokens(trace: HeadTrace, choice: Choice, size: int, whole: int) -> HeadTrace:
    """Puts the vocabulary's true size and tokens into the trace, and takes out places in headscope's own source."""
    picked = f"[:, {[row.id for row in choice.rows]}]"

    def shape(axes: Shape) -> Shape:
        return tuple(whole if axis == size else axis for axis in axes)

    def stage(item: Stage) -> Stage:
        is_pick = item.operation == "index" and _is_own_source(item.file)
        return replace(
            item,
            input_shapes=tuple(map(shape, item.input_shapes)),
            output_shape=shape(item.output_shape),
            detail=picked if is_pick else item.detail,
        )

    rows = trace.token_rows
    true_rows = None if rows is None else TokenRows(rows.parameter, choice.rows, whole)
    gaps = () if true_rows else (Gap(GapTopic.TOKEN_ROWS, "headscope could not prove which rows the scores read"),)
    stages, not_determined = tuple(map(stage, trace.stages)), (*trace.not_determined, *gaps)
    return without_own_places(replace(trace, stages=stages, token_rows=true_rows, not_determined=not_determined))


def _is_own_source(file: str) -> bool:
    """True if an operation is in headscope's own source, where tokens are picked and chains of modules run."""
    return file.rpartition("/")[2] in {"token_rows.py", "module_chain.py"}


def without_own_places(trace: HeadTrace) -> HeadTrace:
    """Removes places in headscope's own source from the trace: they say nothing about the checkpoint."""
    stages = (replace(item, file="", line=0) if _is_own_source(item.file) else item for item in trace.stages)
    evidence = (
        replace(item, file="", line=0) if _is_own_source(item.file) else item for item in trace.pooling.evidence
    )
    return replace(trace, stages=tuple(stages), pooling=replace(trace.pooling, evidence=tuple(evidence)))


_ID = "id:"


def tokens_of(request: Request, manifest: CheckpointManifest) -> tuple[TokenRow, ...]:
    """Lists the tokens in the order of the scores, with their texts if the files are at hand; () for other scores.

    Raises UsageError for tokens that the vocabulary lacks, and for a text if no vocabulary can be read.
    """
    if request.tokens:
        return _requested_rows(request, manifest)
    files = manifest.sentence.token_ids if manifest.sentence is not None else ()
    if not files or request.task or request.model_class or request.num_labels is not None:
        return ()
    texts = _read_texts_of_ids(request, manifest)
    return tuple(TokenRow(number, texts.get(number, "")) for number in files)


def _requested_rows(request: Request, manifest: CheckpointManifest) -> tuple[TokenRow, ...]:
    if request.task or request.model_class or request.num_labels is not None:
        raise UsageError(
            "--tokens was given with --task, --model-class or --num-labels",
            "leave out either: tokens make one score each, of a causal language model",
        )
    if len(set(request.tokens)) < len(request.tokens) or len(request.tokens) > 2:
        raise UsageError(
            f"--tokens names {', '.join(request.tokens)}", "name the token for no and the one for yes, or one token"
        )
    if all(map(_is_id, request.tokens)):
        texts = _read_texts_of_ids(request, manifest)
        return tuple(TokenRow(number, texts.get(number, "")) for number in map(_id_in, request.tokens))
    from headscope.core.model.classes.token_rows import id_of

    vocabulary = _read_tokens(request, manifest)
    return tuple(
        TokenRow(_id_in(token)) if _is_id(token) else TokenRow(id_of(token, vocabulary), token)
        for token in request.tokens
    )


def _is_id(token: str) -> bool:
    digits = token.removeprefix(_ID)
    # At most 9 digits: a longer number cannot be an id, and Python refuses to convert very long ones.
    return token.startswith(_ID) and digits.isascii() and digits.isdigit() and len(digits) <= 9


def _id_in(token: str) -> int:
    return int(token.removeprefix(_ID))


def _read_texts_of_ids(request: Request, manifest: CheckpointManifest) -> dict[int, str]:
    """Reads the texts of token ids, if that costs no request; {} if it does, and if no file lists them."""
    try:
        return {number: token for token, number in _read_tokens(request, manifest, is_free=True).items()}
    except HeadscopeError:  # the ids stand without their texts
        return {}


def _read_tokens(request: Request, manifest: CheckpointManifest, *, is_free: bool = False) -> dict[str, int]:
    """Reads every token with its id, of the base model if an adapter has no tokenizer. Raises as `_read_tokens_at`."""
    from headscope.core.source.reading.reading import base_of_adapter

    try:
        return _read_tokens_at(request, manifest.commit, is_free=is_free)
    except NotFound:
        if manifest.adapter is None or request.adapter is not None:
            raise
    return _read_tokens_at(base_of_adapter(request, manifest), manifest.base_commit, is_free=is_free)


def _read_tokens_at(request: Request, commit: str | None, *, is_free: bool) -> dict[str, int]:
    """Reads the tokens that a tokenizer's files list, with their ids; {} with `is_free` if that costs a request.

    Raises UsageError for a snapshot, which has none, and NotFound if no file lists them.
    """
    from headscope.core.checkpoints.checkpoint_files import open_sidecar
    from headscope.core.checkpoints.contents.tokenizer_file import read_vocabulary

    sidecar = open_sidecar(replace(request.location, commit=commit))
    if sidecar is None:
        raise UsageError(
            f"{request.reference} holds no tokenizer to look tokens up in",
            "give the ids of the tokens, such as --tokens id:2152,id:9693",
        )
    if is_free and not sidecar.reads_cheaply:
        return {}
    with sidecar.reaching():
        return read_vocabulary(sidecar.storage)
