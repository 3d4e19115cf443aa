"""Layers of a head mapped onto those of another: the same functions, and every affine map between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch

from headscope.copies.facts import FoldedParameter
from headscope.core.facts import Where
from headscope.core.trace.layers import HeadLayer, LayeredHead, LayerKind, is_same_function
from headscope.errors import ExitCode, Unsupported

Values = Mapping[str, torch.Tensor]
Filled = dict[FoldedParameter, torch.Tensor]
"""Parameters of the class, with their values in double precision."""
_DEEPEST = 1000
_BOUNDARIES = {LayerKind.NORM, LayerKind.FUNCTION, LayerKind.POOLING}


class DoesNotFold(Unsupported):
    """A part of a head that has no place in a class; `depth` counts how much of the head had one."""

    exit_code = ExitCode.FINDINGS

    def __init__(self, message: str, hint: str = "", depth: int = _DEEPEST) -> None:
        super().__init__(message, hint)
        self.depth = depth


@dataclass(frozen=True, slots=True, eq=False)
class _Affine:
    """A linear map, a factor for each feature or an offset, with the names of its parameters; None leaves a part out.

    `weight` is [out, in] for a map and [features] for factors.
    """

    weight: torch.Tensor | None
    bias: torch.Tensor | None
    sources: tuple[str, ...] = ()
    text: str = ""


def fill_class(
    source: LayeredHead, values: Values, target: LayeredHead, shapes: Mapping[str, torch.Size], name: str
) -> Filled:
    """Computes the parameters with which the head `target` of the class `name` gives the scores of `source`.

    Raises DoesNotFold with the part of the source that has no place in the class.
    """
    _check_pooling(source, target, name)
    own, others = _segments_of(source), _segments_of(target)
    ends = zip_longest((item[0] for item in own[1:]), (item[0] for item in others[1:]))
    for depth, (one, other) in enumerate(ends, 1):
        if reason := _differing_function(one, other, name):
            raise DoesNotFold(reason, depth=depth)
    filled: Filled = {}
    for layers, others_layers in zip(own, others, strict=True):
        pieces = [piece for layer in layers for piece in _pieces_of(layer, values)]
        filled |= _fill_segment(pieces, others_layers, shapes, name)
    return filled


def words_of_pooling(head: LayeredHead) -> str:
    """Says what a head reads: `the first token`, `the mean over the tokens that are not padding`."""
    if head.positions is None:
        return "every token"
    words = _PLACES.get((head.positions.where, head.positions.index), head.positions.text)
    return f"the {head.pooled} over {words}" if head.pooled else f"the {words}"


_PLACES: dict[tuple[Where, int | None], str] = {
    (Where.INDEX, 0): "first token",
    (Where.FIRST_NON_PAD, None): "first token that is not padding",
    (Where.INDEX, -1): "last token",
    (Where.LAST_NON_PAD, None): "last token that is not padding",
    (Where.NON_PAD, None): "the tokens that are not padding",
    (Where.ALL, None): "all tokens",
    (Where.EOS, None): "end-of-text token",
}
_ENDS = ({(Where.INDEX, 0), (Where.FIRST_NON_PAD, None)}, {(Where.INDEX, -1), (Where.LAST_NON_PAD, None)})
"""Places that are one token if padding is on the other side; the proof runs padded batches."""


def _check_pooling(source: LayeredHead, target: LayeredHead, name: str) -> None:
    one, other = source.positions, target.positions
    is_same = one is not None and other is not None and source.pooled == target.pooled
    if one is not None and other is not None:
        places = {(item.where, item.index) for item in (one, other)}
        is_same &= (len(places) == 1 and one.stop == other.stop) or any(places <= end for end in _ENDS)
    if not is_same:
        raise DoesNotFold(
            f"the head reads {words_of_pooling(source)}, and {name} reads {words_of_pooling(target)}", depth=0
        )
    read, offered = source.hidden, target.hidden
    # What the trace doesn't name is left to the proof.
    is_known = all(item.module or item.layer is not None for item in (read, offered))
    if is_known and read.layer != offered.layer and read.module != offered.module:
        named = [f"{item.text} of {item.module}" if item.module else item.text for item in (read, offered)]
        raise DoesNotFold(f"the head reads {named[0]}, and {name} reads {named[1]}", depth=0)


def _segments_of(head: LayeredHead) -> list[list[HeadLayer]]:
    """Cuts a head before each function; all segments but the first begin with one."""
    found: list[list[HeadLayer]] = [[]]
    for layer in head.layers:
        if layer.kind in _BOUNDARIES:
            found.append([])
        found[-1].append(layer)
    return found


def _differing_function(one: HeadLayer | None, other: HeadLayer | None, name: str) -> str:
    """Says how two functions at the same place differ; "" if they don't. None is a head that ends before."""
    layer = one or other
    if one is None or other is None:
        assert layer is not None
        lacking, has = (name, "the head") if other is None else ("the head", name)
        return f"{has} has {layer.text} where {lacking} has nothing more before the last linear layer"
    if one.width != other.width:
        return f"{one.text} is of {one.width} features, and {other.text} of {name} of {other.width}"
    if is_same_function(one, other):
        return ""
    kind = " with another eps" if one.text == other.text else ""
    return f"the head has {one.text} where {name} has {other.text}{kind}"


def _pieces_of(layer: HeadLayer, values: Values) -> Iterator[_Affine]:
    """Yields the affine maps of a layer. The weight and the bias of a norm come after its arithmetic."""
    rows = list(layer.rows) or slice(None)
    weight, bias = (values[name][rows].double() if name else None for name in (layer.weight, layer.bias))
    match layer.kind:
        case LayerKind.LINEAR:
            if weight is None:
                raise DoesNotFold(f"the weight of {layer.text} is computed")
            yield _Affine(weight, bias, (layer.weight, *([layer.bias] if layer.bias else [])), layer.text)
        case LayerKind.NORM:
            if weight is not None:
                yield _Affine(weight, None, (layer.weight,), layer.text)
            if bias is not None:
                yield _Affine(None, bias, (layer.bias,), layer.text)
        case LayerKind.SCALE:
            factor, offset = torch.tensor([layer.factor, layer.offset], dtype=torch.float64)
            yield _Affine(factor if factor != 1 else None, offset if offset != 0 else None, text=layer.text)
        case LayerKind.ROWS:
            raise DoesNotFold(f"the head picks {layer.text} of its scores")


def _fill_segment(
    pieces: Sequence[_Affine], layers: Sequence[HeadLayer], shapes: Mapping[str, torch.Size], name: str
) -> Iterator[tuple[FoldedParameter, torch.Tensor]]:
    """Yields the parameters of a segment of the class: those of its norm first, which take what they can."""
    rest = list(pieces)
    norms = [layer for layer in layers if layer.kind in _BOUNDARIES]
    for parameter, is_weight in ((item, at == 0) for norm in norms for at, item in enumerate((norm.weight, norm.bias))):
        if not parameter:
            continue
        first = rest[0] if rest else _Affine(None, None)
        found = first.weight if is_weight else first.bias
        if found is not None and found.shape == shapes[parameter] and (is_weight or first.weight is None):
            yield FoldedParameter(parameter, first.sources, is_copied=True), found
            rest = rest[1:]
        else:
            yield FoldedParameter(parameter, (), False), torch.full(shapes[parameter], float(is_weight)).double()
    linear = [layer for layer in layers if layer.kind is LayerKind.LINEAR]
    others = [layer for layer in layers if layer not in (*norms, *linear)] or linear[1:]
    if others:
        raise DoesNotFold(f"{name} has {others[0].text}, which headscope can't fill")
    if linear:
        yield from _fill_linear(rest, linear[0], shapes, name)
    elif rest:
        raise DoesNotFold(f"{rest[0].text} has no place in {name}, which has no linear layer there")


def _fill_linear(
    pieces: Sequence[_Affine], layer: HeadLayer, shapes: Mapping[str, torch.Size], name: str
) -> Iterator[tuple[FoldedParameter, torch.Tensor]]:
    """Yields the parameters of one linear layer that does what all pieces do in turn."""
    if not layer.weight:
        raise DoesNotFold(f"the weight of {layer.text} in {name} is computed")
    shape = shapes[layer.weight]
    weight, bias = torch.eye(shape[1]).double(), torch.zeros(shape[1]).double()
    for piece in pieces:
        given = piece.weight
        if given is not None and given.dim() == 2:
            if given.shape[1] != weight.shape[0]:
                counts = f"{given.shape[1]} features, and there are {weight.shape[0]} in {name}"
                raise DoesNotFold(f"{piece.text} takes {counts}")
            weight, bias = given @ weight, given @ bias
        elif given is not None:
            weight, bias = weight * given.reshape(-1, 1), bias * given
        bias = bias if piece.bias is None else bias + piece.bias
    if weight.shape != shape:
        text = pieces[-1].text if pieces else "no linear layer"
        raise DoesNotFold(
            f"the head has {text} with {weight.shape[1]} -> {weight.shape[0]} features where {layer.text} of {name} "
            f"has {shape[1]} -> {shape[0]}"
        )
    maps = [piece for piece in pieces if piece.weight is not None]
    weights = tuple(name for piece in maps for name in piece.sources[:1])
    is_copied = len(maps) == 1 and maps[0].weight is not None and maps[0].weight.dim() == 2
    yield FoldedParameter(layer.weight, weights, is_copied), weight
    first = next((at for at, piece in enumerate(pieces) if piece.bias is not None), len(pieces))
    if layer.bias:
        after = [piece.sources if at else piece.sources[-1:] for at, piece in enumerate(pieces[first:])]
        biases = tuple(name for names in after for name in names)
        yield FoldedParameter(layer.bias, biases, len(after) == len(biases) == 1), bias
    elif bool(bias.any()):
        raise DoesNotFold(f"the bias of {pieces[first].text} has no place: {layer.text} of {name} has no bias")
