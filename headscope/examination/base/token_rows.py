"""The head trace of scores that are rows of a language-model head: traced with few tokens, told with all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from headscope.errors import Unsupported
from headscope.facts import HeadTrace, Pooling, Stage, TokenRows, Unavailable

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headscope.facts.heads.head import Shape
    from headscope.model.classes.model_request import Choice
    from headscope.trace import HeadProgram

_OWN = "token_rows.py"


def trace_token_rows(
    skeleton: PreTrainedModel, choice: Choice, keep: Callable[[HeadProgram], object] | None = None
) -> tuple[HeadTrace, Choice]:
    """The head trace of a reranker, and the choice that makes the same model with a small vocabulary.

    A head does not depend on the size of the vocabulary, and a proof on random numbers would need all its rows: so a
    copy with few tokens is traced, and its sizes and rows are given back the names of the checkpoint's.
    Raises Unsupported where no such copy can be made.
    """

    from headscope.model.classes.reduced_config import shallow_twins
    from headscope.model.classes.token_rows import with_few_tokens
    from headscope.model.quiet import quiet
    from headscope.trace import TokenNames, trace_head
    from headscope.upstream.torch import on_meta

    cls, config, size = with_few_tokens(choice.cls, choice.config, len(choice.rows))
    names = TokenNames(rows=tuple(zip(range(size - len(choice.rows), size), map(_text, choice.rows), strict=True)))
    small = replace(choice, cls=cls, config=config)
    try:
        with quiet(), on_meta():
            model = cls(config)
    except Exception as err:  # whatever a foreign constructor raises
        raise Unsupported(f"{cls.__name__} cannot be made with {size} tokens: {type(err).__name__}: {err}", "") from err
    model.train(False)
    with quiet():
        trace = trace_head(model, choice.task, names, verify=True, twins=lambda: shallow_twins(model), keep=keep)
    whole = int(choice.config.get_text_config().vocab_size)
    _check_shapes(model, skeleton, trace, {size: whole})
    return _told(trace, choice, size, whole), small


def _text(row: object) -> str:
    return str(getattr(row, "token", "")) or f"id_{getattr(row, 'id', '')}"


def _check_shapes(small: PreTrainedModel, skeleton: PreTrainedModel, trace: HeadTrace, renamed: dict[int, int]) -> None:
    """Raises Unsupported where the head of the small copy is another one than the checkpoint's."""
    own, other = ({name: tuple(item.shape) for name, item in of.named_parameters()} for of in (small, skeleton))
    for name in trace.parameters:
        if name not in other or tuple(renamed.get(axis, axis) for axis in own.get(name, ())) != other[name]:
            raise Unsupported(f"{name} has another shape in a copy of the model with fewer tokens", "")


def _told(trace: HeadTrace, choice: Choice, size: int, whole: int) -> HeadTrace:
    """The trace with the vocabulary's true size, the true tokens, and no places in headscope's own source."""

    picked = str(list(range(size - len(choice.rows), size)))

    def shape(axes: Shape) -> Shape:
        return tuple(whole if axis == size else axis for axis in axes)

    def stage(item: Stage) -> Stage:
        own = _is_own(item.file)
        return replace(
            item,
            input_shapes=tuple(map(shape, item.input_shapes)),
            output_shape=shape(item.output_shape),
            file="" if own else item.file,
            line=0 if own else item.line,
            detail=item.detail.replace(picked, str([row.id for row in choice.rows])) if own else item.detail,
        )

    rows = trace.token_rows
    told = None if rows is None else TokenRows(rows.parameter, choice.rows, whole)
    gaps = () if told else (Unavailable("token rows", "headscope could not prove which rows the scores read"),)
    return replace(
        trace,
        stages=tuple(map(stage, trace.stages)),
        pooling=_pooling(trace.pooling, size, whole),
        token_rows=told,
        not_determined=(*trace.not_determined, *gaps),
    )


def _is_own(file: str) -> bool:
    """Whether an operation is in headscope's own source: the last position and its tokens are picked there."""
    return file.rpartition("/")[2] == _OWN


def _pooling(pooling: Pooling, size: int, whole: int) -> Pooling:
    evidence = tuple(replace(item, file="", line=0) if _is_own(item.file) else item for item in pooling.evidence)
    return replace(pooling, rule=pooling.rule.replace(f"of {size}", f"of {whole:,}"), evidence=evidence)
