"""Smaller copies of configurations: heads do not depend on depth, vocabulary or number of experts."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from headscope.core.model.quiet import quiet
from headscope.core.upstream.torch import on_meta

DEPTHS = (
    "num_hidden_layers",
    "n_layers",
    "n_layer",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_decoder_layers",
)
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_PARTS = ("text_config", "vision_config", "audio_config", "encoder", "decoder", "encoder_config", "decoder_config")


def shallow_config(config: Any, depth: int = 1) -> Any:
    """Copies a configuration with at most `depth` layers, in its parts too."""
    shallow = deepcopy(config)
    for part in with_parts(shallow):
        _lower_fields(part, DEPTHS, depth)
    return shallow


def shallow_twins(model: PreTrainedModel) -> tuple[PreTrainedModel, ...]:
    """Builds skeletons of the same class and configuration with fewer layers, the smallest first.

    One has a single layer. Where a list names the kind of each layer, one has the first layer of each kind, and one the
    first two: they may share weights. Those that the class does not make are left out.
    """
    single = _build_twin(model, shallow_config)
    if single is not None and not _has_several_kinds(model.config) and _count_modules(single) < _count_modules(model):
        return (single,)
    of_kinds = (_build_twin(model, partial(_with_first_of_each_kind, count=count)) for count in (1, 2))
    return tuple(sorted((twin for twin in (single, *of_kinds) if twin is not None), key=_count_modules))


def _build_twin(model: PreTrainedModel, smaller: Callable[[Any], Any]) -> PreTrainedModel | None:
    try:
        with quiet(), on_meta():
            twin = type(model)(smaller(model.config))
    except Exception:  # whatever a foreign constructor raises: a pattern of layers that must be whole
        return None
    twin.train(False)
    return twin


def _count_modules(model: PreTrainedModel) -> int:
    return sum(1 for _ in model.modules())


def _has_several_kinds(config: Any) -> bool:
    """True if a list names layers of several kinds: then one layer is not enough."""
    return any(
        len(value) == getattr(part, name, None) and any(item != value[0] for item in value)
        for part in _nested_configs(config)
        for value in vars(part).values()
        if isinstance(value, list | tuple) and value
        for name in DEPTHS
    )


def _with_first_of_each_kind(config: Any, count: int) -> Any:
    """Copies a configuration, cut behind the layer by which each kind has appeared `count` times.

    Raises ValueError where no list names the kind of each layer, or each of them is needed.
    """
    cut = deepcopy(config)
    changed = [_cut_depth(part, count) for part in _nested_configs(cut)]
    if not any(changed):
        raise ValueError("no pattern of layers to shorten")
    return cut


def _nested_configs(config: Any) -> Iterator[Any]:
    """Yields a configuration and those inside it."""
    yield config
    for value in tuple(vars(config).values()):
        if isinstance(value, PreTrainedConfig):
            yield from _nested_configs(value)


def _cut_depth(config: Any, count: int) -> bool:
    """Lowers the depth of one configuration, and cuts its lists of a value for each layer; True if it did."""
    lists = {name: value for name, value in vars(config).items() if isinstance(value, list | tuple)}
    for name in DEPTHS:
        depth = getattr(config, name, None)
        kinds = {of: value for of, value in lists.items() if len(value) == depth}
        if (
            type(depth) is not int
            or not kinds
            or any(_is_list_of_sizes(value) and max(value) > 1 for value in kinds.values())
        ):
            continue
        places = ([at for at, other in enumerate(value) if other == kind] for value in kinds.values() for kind in value)
        # In the first `kept` layers each kind appears `count` times, or as often as it does.
        kept = max(1 + found[:count][-1] for found in places)
        if kept < depth:
            for of, value in kinds.items():
                setattr(config, of, value[:kept])
            setattr(config, name, kept)
            return True
    return False


def reduced_config(config: Any, depth: int = 1) -> Any:
    """Copies a configuration so that real weights in single precision fit into memory: few layers and experts.

    Where a list names the kind of each layer, it keeps the first `depth` layers of each kind.
    """
    try:
        reduced = _with_first_of_each_kind(config, depth)
    except ValueError:
        reduced = deepcopy(config) if _has_several_kinds(config) else shallow_config(config, depth)
    reduced.dtype = "float32"
    for part in with_parts(reduced):
        _lower_fields(part, _EXPERTS, 4)
        _lower_fields(part, ("num_experts_per_tok",), 2)
    return reduced


def fitting_config(
    config: Any,
    count: Callable[[Any], int],
    most: int,
    *,
    factors: tuple[int, ...] = (8,),
    smallest: int = 1024,
    depth: int = 1,
) -> Any | None:
    """Finds a reduced copy whose model holds at most `most` parameters; None where there is none.

    `count` gives the parameters of a configuration's model and raises where it makes none. As long as the copy is too
    large, its sizes from `smallest` up are divided by the first of `factors` that works, vocabularies first, then the
    others from the largest: a size is kept small where a model can still be made and has become smaller. The number of
    attempts depends on the configuration alone.
    """
    reduced = reduced_config(config, depth)
    size = count(reduced)
    for _ in range(3):
        for at, name in _large_sizes(reduced, smallest):
            if size <= most:
                return reduced
            for smaller in _shrunk_copies(reduced, at, name, factors):
                found = _count_or_none(smaller, count)
                if found is not None and found < size:
                    reduced, size = smaller, found
                    break
    return reduced if size <= most else None


def with_vocabulary(config: Any, size: int, *, moves_all: bool = False) -> Any:
    """Copies a configuration with a vocabulary of `size` tokens; special tokens outside of it move into it.

    Those that are outside the whole vocabulary stay outside, unless `moves_all`: the copy fails where the whole fails.
    """
    reduced = deepcopy(config)
    for part in with_parts(reduced):
        values = part.to_dict()
        if type(values.get("vocab_size")) is not int:
            continue
        whole, part.vocab_size = part.vocab_size, size
        tokens = {field: value for field, value in values.items() if _is_token_id(field, value)}
        beyond = set() if moves_all else {value for value in tokens.values() if value >= whole}
        moved = sorted({value for value in tokens.values() if value >= size} - beyond)  # equal ids stay equal
        places = {value: size // 2 - place for place, value in enumerate(moved)}
        places |= {value: size + value - whole for value in beyond}
        for field, value in tokens.items():
            if value in places:
                setattr(part, field, places[value])
    return reduced


def with_wider_heads(config: Any, width: int, count: Callable[[Any], int]) -> Any:
    """Copies a configuration with so few attention heads that each has `width` numbers or more, if it still works."""
    wider = deepcopy(config)
    for part in with_parts(wider):
        hidden, heads = (getattr(part, name, None) for name in ("hidden_size", "num_attention_heads"))
        if type(hidden) is int and type(heads) is int and hidden // heads < width:
            _reduce_heads(part, next((by for by in (2, 4, 8, 16) if hidden // heads * by >= width), 16))
    return config if _count_or_none(wider, count) is None else wider


def _shrunk_copies(config: Any, at: int, name: str, factors: tuple[int, ...]) -> Iterator[Any]:
    """Yields copies with one size divided by each factor; with several, the attention heads are divided with it."""
    for factor in factors:
        smaller = deepcopy(config)
        _shrink_size(with_parts(smaller)[at], name, factor)
        yield smaller
        if len(factors) > 1:
            _reduce_heads(with_parts(smaller)[at], factor)
            yield smaller


def _reduce_heads(config: Any, factor: int) -> None:
    for name in _HEADS:
        value = getattr(config, name, None)
        if type(value) is int and value >= factor:
            setattr(config, name, value // factor)


def _count_or_none(config: Any, count: Callable[[Any], int]) -> int | None:
    try:
        return count(config)
    except Exception:  # whatever a foreign constructor raises: this size stays as it is
        return None


_HEADS = ("num_attention_heads", "num_key_value_heads", "n_head", "n_heads")


def _large_sizes(config: Any, smallest: int) -> list[tuple[int, str]]:
    """Lists the large whole numbers of a configuration and its parts, by part and name: vocabularies, then by size."""
    found = [
        (at, name, value)
        for at, part in enumerate(with_parts(config))
        for name, value in vars(part).items()
        if type(value) is int and value >= smallest and not name.endswith("_token_id")
    ]
    found.sort(key=lambda item: ("vocab" not in item[1], -item[2], item[0], item[1]))
    return [(at, name) for at, name, _ in found]


def _shrink_size(config: Any, name: str, factor: int) -> None:
    """Divides one size; special tokens between the smaller vocabulary's end and the whole one's move into it.

    An id that was outside before stays there: the small model must fail where the large one fails.
    """
    before = getattr(config, name)
    size = before // factor
    setattr(config, name, size)
    if "vocab" in name:
        outside = (
            field for field, value in vars(config).items() if _is_token_id(field, value) and size <= value < before
        )
        for place, field in enumerate(sorted(outside, key=lambda field: (getattr(config, field), field))):
            setattr(config, field, size - 1 - place)


def _is_token_id(field: str, value: Any) -> bool:
    return field.endswith("_token_id") and type(value) is int


def with_parts(config: Any) -> list[Any]:
    """Lists a configuration and those of its parts, such as a text and a vision model."""
    parts = (getattr(config, name, None) for name in _PARTS)
    return [config, *(part for part in parts if hasattr(part, "to_dict"))]


def _lower_fields(config: Any, names: tuple[str, ...], most: int) -> None:
    """Lowers fields to `most`, but for a count of stages with their own sizes: the last of these makes the head's."""
    stages = {len(value) for value in vars(config).values() if _is_list_of_sizes(value)}
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > most and value not in stages:
            try:
                setattr(config, name, most)
            except Exception:  # a configuration may derive the field and refuse to have it set
                continue


def _is_list_of_sizes(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 1 and all(type(item) is int for item in value)
