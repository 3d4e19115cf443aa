"""Layers of a head mapped onto those of another: the same functions, and every affine map between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from headscope.core.facts import Positions, Where
from headscope.core.trace.layers import HeadLayer, LayeredHead, LayerKind, is_same_function
from headscope.errors import ExitCode, Unsupported

Values = Mapping[str, torch.Tensor]
_Map = tuple[torch.Tensor, torch.Tensor]
_DEEPEST = 1000
_BOUNDARIES = {LayerKind.NORM, LayerKind.FUNCTION, LayerKind.POOLING}


class DoesNotFold(Unsupported):
    """A part of a head that has no place in a class; `depth` counts how much of the head had one."""

    exit_code = ExitCode.FINDINGS

    def __init__(self, message: str, hint: str = "", depth: int = _DEEPEST) -> None:
        super().__init__(message, hint)
        self.depth = depth


@dataclass(frozen=True, slots=True, eq=False)
class FilledParameter:
    """A parameter of the class: its values in double precision, and the source's parameters that they are made of.

    `is_copied` is true if they are the values of one of these.
    """

    name: str
    values: torch.Tensor
    sources: tuple[str, ...]
    is_copied: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """A linear map, a factor for each feature or an offset, with the names of its parameters; None leaves a part out.

    `weight` is [out, in] for a map and [features] for factors.
    """

    weight: torch.Tensor | None
    bias: torch.Tensor | None
    sources: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Segment:
    """Layers between two functions, and the function at their end: None after the last."""

    layers: tuple[HeadLayer, ...]
    end: HeadLayer | None


def fill_class(
    source: LayeredHead, values: Values, target: LayeredHead, shapes: Mapping[str, torch.Size], name: str
) -> tuple[FilledParameter, ...]:
    """Computes the parameters with which the head `target` of the class `name` gives the scores of `source`.

    Raises DoesNotFold with the part of the source that has no place in the class.
    """
    _check_pooling(source, target, name)
    own, others = _segments_of(source), _segments_of(target)
    for at, (one, other) in enumerate(zip(own, others, strict=False), 1):
        try:
            _check_end(one.end, other.end, name)
        except DoesNotFold as err:
            raise DoesNotFold(err.message, depth=at) from None
    filled: list[FilledParameter] = []
    norms: tuple[HeadLayer | None, HeadLayer | None] = (None, None)
    for one, other in zip(own, others, strict=True):
        pieces = [*_norm_pieces(norms[0], values), *(_affine_of(item, values) for item in one.layers)]
        filled += _fill_segment(pieces, norms[1], other.layers, shapes, name)
        norms = one.end, other.end
    return tuple(filled)


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
}
_ENDS = ({(Where.INDEX, 0), (Where.FIRST_NON_PAD, None)}, {(Where.INDEX, -1), (Where.LAST_NON_PAD, None)})
"""Places that are one token if padding is on the other side; the proof runs padded batches."""


def is_same_place(one: Positions | None, other: Positions | None) -> bool:
    """True if two rules read the same tokens of a text without padding at the end that is read."""
    if one is None or other is None:
        return False
    places = {(item.where, item.index) for item in (one, other)}
    return (len(places) == 1 and one.stop == other.stop) or any(places <= end for end in _ENDS)


def _check_pooling(source: LayeredHead, target: LayeredHead, name: str) -> None:
    if source.pooled != target.pooled or not is_same_place(source.positions, target.positions):
        raise DoesNotFold(
            f"the head reads {words_of_pooling(source)}, and {name} reads {words_of_pooling(target)}", depth=0
        )
    if source.hidden.layer != target.hidden.layer and source.hidden.module != target.hidden.module:
        raise DoesNotFold(f"the head reads {source.hidden.text}, and {name} reads {target.hidden.text}", depth=0)


def _segments_of(head: LayeredHead) -> tuple[_Segment, ...]:
    found, layers = list[_Segment](), list[HeadLayer]()
    for layer in head.layers:
        if layer.kind in _BOUNDARIES:
            found.append(_Segment(tuple(layers), layer))
            layers = []
        else:
            layers.append(layer)
    return (*found, _Segment(tuple(layers), None))


def _check_end(one: HeadLayer | None, other: HeadLayer | None, name: str) -> None:
    """Raises DoesNotFold if two functions at the same place differ."""
    if one is None and other is None:
        return
    if one is None or other is None:
        lacking, has = (name, "the head") if other is None else ("the head", name)
        layer = one or other
        assert layer is not None
        raise DoesNotFold(f"{has} has {layer.text} where {lacking} has nothing more before the last linear layer")
    if one.width != other.width:
        raise DoesNotFold(f"{one.text} is of {one.width} features, and {other.text} of {name} of {other.width}")
    if not is_same_function(one, other):
        kind = " with another eps" if one.text == other.text else ""
        raise DoesNotFold(f"the head has {one.text} where {name} has {other.text}{kind}")


def _norm_pieces(norm: HeadLayer | None, values: Values) -> Iterator[Affine]:
    """Yields the weight and the bias of a norm, which come after its arithmetic."""
    if norm is not None and norm.weight:
        yield Affine(values[norm.weight].double(), None, (norm.weight,), norm.text)
    if norm is not None and norm.bias:
        yield Affine(None, values[norm.bias].double(), (norm.bias,), norm.text)


def _affine_of(layer: HeadLayer, values: Values) -> Affine:
    match layer.kind:
        case LayerKind.LINEAR:
            if not layer.weight:
                raise DoesNotFold(f"the weight of {layer.text} is computed")
            rows = list(layer.rows) or slice(None)
            bias = values[layer.bias][rows].double() if layer.bias else None
            names = (layer.weight, *([layer.bias] if layer.bias else []))
            return Affine(values[layer.weight][rows].double(), bias, names, layer.text)
        case LayerKind.FACTOR:
            return Affine(torch.tensor(layer.number).double(), None, text=layer.text)
        case LayerKind.OFFSET:
            return Affine(None, torch.tensor(layer.number).double(), text=layer.text)
    raise DoesNotFold(f"the head picks {layer.text} of its scores")


def _fill_segment(
    pieces: Sequence[Affine], norm: HeadLayer | None, layers: Sequence[HeadLayer], shapes: Mapping[str, torch.Size],
    name: str,
) -> Iterator[FilledParameter]:  # fmt: skip
    """Yields the parameters of the class between two functions: `norm` is the one before them, with its weights."""
    rest = list(pieces)
    for parameter, is_weight in ((norm.weight, True), (norm.bias, False)) if norm is not None else ():
        if not parameter:
            continue
        first = rest[0] if rest else Affine(None, None)
        found = first.weight if is_weight else first.bias
        if found is not None and found.shape == shapes[parameter] and (is_weight or first.weight is None):
            yield FilledParameter(parameter, found, first.sources, is_copied=True)
            rest = rest[1:]
        else:
            yield FilledParameter(parameter, torch.full(shapes[parameter], float(is_weight)).double(), ())
    others = [layer for layer in layers if layer.kind is not LayerKind.LINEAR]
    if others or len(layers) > 1:
        raise DoesNotFold(f"{name} has {(others or list(layers))[0].text}, which headscope can't fill")
    if layers:
        yield from _fill_linear(rest, layers[0], shapes, name)
    elif rest:
        raise DoesNotFold(f"{rest[0].text} has no place in {name}, which has no linear layer there")


def _fill_linear(
    pieces: Sequence[Affine], layer: HeadLayer, shapes: Mapping[str, torch.Size], name: str
) -> Iterator[FilledParameter]:
    """Yields the parameters of one linear layer that does what all pieces do in turn."""
    if not layer.weight:
        raise DoesNotFold(f"the weight of {layer.text} in {name} is computed")
    shape = shapes[layer.weight]
    weight, bias = torch.eye(shape[1]).double(), torch.zeros(shape[1]).double()
    for piece in pieces:
        weight, bias = _compose_maps(weight, bias, piece, name)
    if weight.shape != shape:
        text = pieces[-1].text if pieces else "no linear layer"
        raise DoesNotFold(
            f"the head has {text} with {weight.shape[1]} -> {weight.shape[0]} features where {layer.text} of {name} "
            f"has {shape[1]} -> {shape[0]}"
        )
    maps = [piece for piece in pieces if piece.weight is not None]
    weights = tuple(name for piece in maps for name in piece.sources[:1])
    is_copied = len(maps) == 1 and maps[0].weight is not None and maps[0].weight.dim() == 2
    yield FilledParameter(layer.weight, weight, weights, is_copied)
    if layer.bias:
        at = next((at for at, piece in enumerate(pieces) if piece.bias is not None), len(pieces))
        biases = tuple(name for piece in pieces[at : at + 1] for name in piece.sources[-1:])
        later = tuple(name for piece in pieces[at + 1 :] for name in piece.sources)
        yield FilledParameter(layer.bias, bias, (*biases, *later), is_copied=len(biases) == 1 and not pieces[at + 1 :])
    elif bool(bias.any()):
        text = next(piece.text for piece in pieces if piece.bias is not None)
        raise DoesNotFold(f"the bias of {text} has no place: {layer.text} of {name} has no bias")


def _compose_maps(
    weight: torch.Tensor, bias: torch.Tensor, piece: Affine, name: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the affine map that a piece makes of another."""
    given = piece.weight
    if given is not None and given.dim() == 2:
        if given.shape[1] != weight.shape[0]:
            raise DoesNotFold(
                f"{piece.text} takes {given.shape[1]} features, and there are {weight.shape[0]} in {name}"
            )
        weight, bias = given @ weight, given @ bias
    elif given is not None:
        weight, bias = weight * given.reshape(-1, 1), bias * given
    return weight, bias if piece.bias is None else bias + piece.bias
