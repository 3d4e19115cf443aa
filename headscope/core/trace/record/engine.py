"""Shape-only execution: floating tensors live on the meta device, integers and booleans stay real.

So a real `forward` runs at no memory cost, and the rule by which it picks a token (an `argmax` over the
attention mask, a search for `<eos>`) is computed on real integers and can be observed.

On meta, most operators run as Python code that works out a shape. A model repeats its layers, and one process traces
many models of a family: with the shapes kept, an operator on operands of the same shapes only makes an empty tensor.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from headscope.core.trace.record.randomness import OwnRandomness
from headscope.core.trace.record.trees import map_tensors, tensors_in
from headscope.core.upstream.torch import is_functional, storage_id

_MOST_RESULTS = 20_000
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_SCALARS = {int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}

TensorLayout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Sizes, strides and dtype of a result."""


class _NoKey(Exception):
    """Raised for operands that hold something that the key can't describe."""


_known_results: dict[Any, tuple[type, tuple[TensorLayout, ...]]] = {}


def run_by_shape(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operator whose tensors are all on meta, or makes its result from the shapes of an earlier run."""
    if not _depends_on_shapes_only(func):
        return func(*args, **kwargs)
    try:
        key = (func, torch.get_default_dtype(), _operand_key(args), _operand_key(tuple(kwargs.items())))
    except _NoKey:
        return func(*args, **kwargs)
    known = _known_results.get(key)
    if known is not None:
        kind, shapes = known
        made = [torch.empty_strided(sizes, strides, dtype=dtype, device="meta") for sizes, strides, dtype in shapes]
        return made[0] if kind is torch.Tensor else kind(made)
    result = func(*args, **kwargs)
    _keep_shapes(key, result, tensors_in((args, kwargs)))
    return result


_depends_on_shapes_only = cache(is_functional)


def _operand_key(value: Any) -> Any:
    """Describes what an operator on meta can see of its arguments. Raises _NoKey for others."""
    kind = type(value)
    if kind in _PLAIN:
        if value.layout is not torch.strided or value.is_nested or value.is_quantized:
            raise _NoKey
        return (value.shape, value.stride(), value.dtype, value.is_conj(), value.is_neg())
    if kind is tuple or kind is list:
        return (kind, *map(_operand_key, value))
    if kind in _SCALARS:
        # The type is part of the key: 1, 1.0 and True are equal in Python and would share an entry.
        return (kind, value)
    raise _NoKey


def _keep_shapes(key: Any, result: Any, operands: list[torch.Tensor]) -> None:
    """Keeps the shapes of a result that has separate memory."""
    kind = type(result)
    made = [result] if kind is torch.Tensor else result if kind is tuple or kind is list else []
    if not made or not all(type(item) is torch.Tensor and item.is_meta and not item.storage_offset() for item in made):
        return
    # Some operators share memory with their operands and don't declare it. An empty tensor can't replace such a result.
    places = {storage_id(item) for item in made}
    if len(places) < len(made) or any(storage_id(item) in places for item in operands):
        return
    # A process that traces many models must not grow without end.
    if len(_known_results) >= _MOST_RESULTS:
        _known_results.clear()
    _known_results[key] = (kind, tuple((tuple(item.shape), item.stride(), item.dtype) for item in made))


META = torch.device("meta")
CPU = torch.device("cpu")
_INDEXING = {"index", "index_put", "index_put_"}
_FACTORIES = {"full_like", "zeros_like", "ones_like", "new_full", "new_zeros", "new_ones"}
# Integers are real here and take real memory, 80 MB for this many of 64 bits. A head that makes more after the shape of
# its hidden states (pixels by features) makes no positions.
_MOST_INTEGERS = 10_000_000


class ShapeOnlyMode(OwnRandomness):  # type: ignore[no-untyped-call]  # upstream has no annotations
    """Runs every operator on meta tensors if one of its operands is a floating tensor on meta.

    `on_guess` is called for every decision that the forward takes on a value that does not exist here (the
    truth of a comparison of floats): after one, the trace may have followed another branch than a real run.
    """

    def __init__(self, on_guess: Callable[[bool], None]) -> None:
        super().__init__()
        self._on_guess = on_guess

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        operands = tensors_in((args, kwargs))
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense" and operands[0].is_meta:
            # A value must be returned, or the forward ends here. Whichever it is, the branch may be the other one on
            # real values: so each guess is kept with its line, and outside the base model it leaves the head path
            # open.
            self._on_guess(True)
            kind = operands[0].dtype
            return False if kind == torch.bool else 0.0 if kind.is_floating_point else 0
        dtype = kwargs.get("dtype")
        is_whole = dtype is not None and not (dtype.is_floating_point or dtype.is_complex)
        # Real integers from the shape of a tensor on meta: positions to read, a mask.
        if name in _FACTORIES and is_whole and args[0].is_meta and args[0].numel() <= _MOST_INTEGERS:
            return func(torch.empty(args[0].shape, dtype=dtype), *args[1:], **kwargs | {"device": CPU})
        if any(operand.is_meta for operand in operands):
            if _writes_meta_into_real(name, args):
                self._on_guess(False)
                return args[0]
            return _run_on_meta(func, name, args, kwargs, is_all_meta=all(operand.is_meta for operand in operands))
        return self.run(func, args, _integers_off_meta(name, args, kwargs, operands))


def _run_on_meta(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_all_meta: bool
) -> Any:
    if name in _INDEXING:
        args = (args[0], _integer_indices(args[1]), *args[2:])
    if "device" in kwargs:
        # Model code asks for the device of a tensor (`device=ids.device`), which for the real integers is the CPU: the
        # result must meet floats that are on meta.
        kwargs["device"] = META
    if not is_all_meta:
        args, kwargs = map_tensors(_to_meta, args), map_tensors(_to_meta, kwargs)
    if name == "_grouped_mm":
        return _grouped_product(*args, **kwargs)
    return run_by_shape(func, args, kwargs)


def _grouped_product(one: torch.Tensor, other: torch.Tensor, offsets: Any = None, *rest: Any, **named: Any) -> Any:
    """Makes the shape of `torch._grouped_mm`, one matrix product for each group of rows.

    [M, K] x [G, K, N] -> [M, N]; [G, M, K] x [G, K, N] -> [G, M, N]; [M, K] x [K, N] -> [G, M, N].
    """
    # The meta kernel of PyTorch accepts only aligned bfloat16.
    groups = (named.get("offs", offsets).shape[0],) if one.dim() == other.dim() == 2 else ()
    return one.new_empty(*groups, *one.shape[:-1], other.shape[-1])


def _integer_indices(indices: Any) -> list[Any]:
    """Replaces real boolean masks by integer indices: a meta operator cannot count their true entries."""
    spelled: list[Any] = []
    for index in indices:
        if isinstance(index, torch.Tensor) and index.dtype == torch.bool and not index.is_meta:
            spelled.extend(index.nonzero(as_tuple=True))
        else:
            spelled.append(index)
    return spelled


def _writes_meta_into_real(name: str, args: tuple[Any, ...]) -> bool:
    """True if an in-place operator would write values that do not exist into a real tensor."""
    target = args[0] if args else None
    return name.endswith("_") and isinstance(target, torch.Tensor) and not target.is_meta


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_meta else tensor.to(META)


def _integers_off_meta(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[torch.Tensor]
) -> dict[str, Any]:
    """Replaces `device="meta"` in the keyword arguments by the CPU if the result holds integers."""
    device = kwargs.get("device")
    is_meta = device is not None and torch.device(device).type == "meta"
    return kwargs | {"device": CPU} if is_meta and _makes_integers(name, args, kwargs, operands) else kwargs


def _makes_integers(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[torch.Tensor]) -> bool:
    """True if an operator gives integers or truth values: by its dtype, its operands, or the bounds that it gets."""
    dtype = kwargs.get("dtype")
    if dtype is not None:
        return not (dtype.is_floating_point or dtype.is_complex)
    if operands:
        return not (operands[0].is_floating_point() or operands[0].is_complex())
    if name == "arange":
        return all(isinstance(bound, int) for bound in args)
    if name == "full":
        return isinstance(args[1], int)
    return False
