"""One tensor of a model against the stored values behind it: those that it was loaded from, or those of a save."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from headscope.core.facts import Gap, TensorHeader
from headscope.core.facts.counting import few_of
from headscope.core.model.tensors.numbers import NumberDifference, compare_numbers, merge_lora, why_not_comparable
from headscope.core.source.live.live_tensors import LiveTensor
from headscope.core.source.stored_tensors import StoredFiles
from headscope.core.upstream.accelerate import TensorReader
from headscope.core.upstream.peft import REWRITING, plain_name, rewritten_weight
from headscope.errors import HeadscopeError, Unsupported
from headscope.shared.loaded.facts import TensorCheck, TensorStatus
from headscope.shared.loaded.pairing import StoredPair, StoredPairing


def unchecked(name: str, tensor: torch.Tensor, *, is_head: bool = True) -> TensorCheck:
    """Describes a tensor before it is compared: its name, shape and dtype."""
    return TensorCheck(
        name=name,
        status=TensorStatus.UNKNOWN,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        is_head=is_head,
        is_buffer=not isinstance(tensor, nn.Parameter),
    )


def checked(
    item: LiveTensor, pairing: StoredPairing, *, is_head: bool, is_live: bool, numbers: TensorReader | None = None
) -> TensorCheck:
    """Checks one tensor of the model; `numbers` reads one that is offloaded."""
    bare = replace(unchecked(item.name, item.tensor, is_head=is_head), is_live=is_live, is_buffer=item.is_buffer)
    try:
        pair = pairing.pair(item)
        item = item if numbers is None else replace(item, tensor=read_offloaded(numbers))
    except Unsupported as err:
        return replace(bare, reason=err.message)
    if pair is None:
        return _without_pair(bare, item, pairing)
    keyed = replace(bare, keys=tuple(header.key for header in pair.headers))
    try:
        return against_stored(keyed, item.tensor, pair, pairing)
    except HeadscopeError as err:
        return replace(keyed, reason=err.message)


def _without_pair(bare: TensorCheck, item: LiveTensor, pairing: StoredPairing) -> TensorCheck:
    """Checks a tensor for which the checkpoint holds none."""
    if item.tied_to:
        return replace(bare, status=TensorStatus.TIED, reason=f"the same tensor as {item.tied_to}")
    if pairing.adapter.is_not_given(item):
        return replace(bare, is_live=False, reason=NOT_GIVEN)  # one gap speaks for all of the adapter
    if item.is_buffer or item.name in pairing.adapter.settled:
        return _against_computed(bare, item, pairing)
    if pairing.manifest.sentence is not None and pairing.manifest.sentence.classifier:
        return replace(bare, reason=IN_A_PICKLE)
    return replace(bare, status=TensorStatus.RANDOM, reason="not in the checkpoint")


def read_offloaded(numbers: TensorReader) -> torch.Tensor:
    """Reads a tensor from where it was offloaded to. Raises Unsupported if it is no longer there."""
    try:
        return numbers()
    except Exception as err:  # a file that was deleted, in whatever library reads it
        raise Unsupported(f"it was offloaded, and can't be read back ({type(err).__name__})", "") from err


_PACKED = ("int", "uint", "float8")
_SCALED = ", which the loader scales"
_NOT_SCALED = " without a quantization config, so the loader takes its values without a scale"


def against_stored(bare: TensorCheck, tensor: torch.Tensor, pair: StoredPair, pairing: StoredPairing) -> TensorCheck:
    """Compares a tensor with the stored tensor of the same shape, or with those that it is made of."""
    if not tensor.numel() and 0 not in pair.headers[0].shape:
        return replace(bare, status=TensorStatus.PLACEHOLDER, reason="it has no elements, as ZeRO-3 leaves a weight")
    reason = why_not_comparable(tensor)
    if reason:
        return replace(bare, reason=reason)
    packed = [item for item in pair.headers if item.dtype.startswith(_PACKED) and item.dtype != bare.dtype]
    is_plain = not pairing.is_scaled and all(item.dtype.startswith("float8") for item in pair.headers)
    if tensor.is_floating_point() and packed and not is_plain:
        return replace(bare, reason=f"it is stored as {packed[0].dtype}{_SCALED if pairing.is_scaled else _NOT_SCALED}")
    if pair.change:
        return _against_merge(bare, tensor, pair, pairing)
    if len(pair.headers) > 1 or pair.headers[0].shape != bare.shape:
        return _against_conversion(bare, tensor, pair, pairing)
    judged = _judge_numbers(bare, tensor, compare_numbers(tensor, partial(pair.place.part, pair.headers[0])))
    is_rewritten = judged.status is TensorStatus.DIFFERENT and bare.name.endswith(".base_layer.weight")
    return _as_rewritten(judged, tensor, pair, pairing) if is_rewritten else judged


def _as_rewritten(judged: TensorCheck, tensor: torch.Tensor, pair: StoredPair, pairing: StoredPairing) -> TensorCheck:
    """Compares a base weight out of which PEFT takes an adapter's first change at each load (PiSSA, OLoRA)."""
    files = pairing.adapter_files
    how = str(files.manifest.config.get("init_lora_weights", "")) if files is not None else ""
    if not how.startswith(REWRITING):
        return judged
    layer = pairing.module.get_submodule(judged.name.removesuffix(".base_layer.weight"))
    try:
        made = rewritten_weight(layer, pair.place.whole(pair.headers[0]).to(tensor.device), how)
    except Exception as err:  # whatever PEFT raises
        return replace(
            judged, status=TensorStatus.UNKNOWN, reason=f"PEFT rewrites it at load ({how}): {type(err).__name__}: {err}"
        )
    found = compare_numbers(tensor, made)
    if found.cast or found.is_within_rounding(tensor.dtype):
        reason = f"PEFT rewrites it at load ({how}), and did so here"
        return replace(judged, status=TensorStatus.TRANSFORMED, max_error=found.largest, reason=reason)
    if "niter" in how:
        reason = f"PEFT rewrites it at load ({how}) with random values, so it can't be made again"
        return replace(judged, status=TensorStatus.UNKNOWN, reason=reason)
    return judged


def _judge_numbers(bare: TensorCheck, tensor: torch.Tensor, found: NumberDifference) -> TensorCheck:
    """Decides the status by a comparison of numbers."""
    largest = found.largest if math.isfinite(found.largest) else None
    is_matrix = tensor.dim() > 1
    if found.has_nan:
        return replace(bare, status=TensorStatus.PLACEHOLDER, max_error=largest, reason="it holds NaN")
    if found.has_infinite and not bare.is_buffer and found.cast and not found.overflows:
        return replace(bare, status=TensorStatus.PLACEHOLDER, max_error=0.0, reason="it holds infinite values")
    if found.zeros and is_matrix and not found.cast:  # zeros that are stored are the checkpoint's own: HS502
        return replace(bare, status=TensorStatus.PLACEHOLDER, max_error=largest, reason="it holds zeros throughout")
    if found.equal:
        return replace(bare, status=TensorStatus.EQUAL, max_error=0.0)
    is_lost = found.overflows and not bare.is_buffer  # a mask of the smallest number may become infinite
    if found.cast and not is_lost:
        return replace(bare, status=TensorStatus.CAST, max_error=largest)
    reason = "" if largest is not None else "finite values are where the other has none"
    if found.cast:
        reason = f"it holds infinite values: those of the checkpoint are too large for {bare.dtype}"
    elif found.through:
        shorter = " or ".join(str(way).removeprefix("torch.") for way in found.through)
        reason = f"rounded to {shorter}, which neither the file nor the model has"
    return replace(bare, status=TensorStatus.DIFFERENT, max_error=largest, reason=reason)


def _against_merge(bare: TensorCheck, tensor: torch.Tensor, pair: StoredPair, pairing: StoredPairing) -> TensorCheck:
    """Compares a weight with what PEFT would merge; the reason tells if it is still the base model's."""
    adapter = pairing.adapter_files
    assert adapter is not None  # a change comes from an adapter
    changes = {name: adapter.whole(header) for name, header in pair.change.items()}
    layer = pairing.module.get_submodule(bare.name.rpartition(".")[0])
    path = plain_name(bare.name).rpartition(".")[0]
    base = pair.place.whole(pair.headers[0])
    merge = merge_lora(base, changes, path, adapter.manifest.config, layer)
    found = compare_numbers(tensor, merge.merged)
    keyed = replace(bare, keys=(*bare.keys, *(header.key for header in pair.change.values())))
    if not found.has_nan and not found.overflows and merge.made(tensor):
        return replace(keyed, status=TensorStatus.MERGED, max_error=found.largest)
    judged = _judge_numbers(keyed, tensor, found)
    if judged.status is TensorStatus.DIFFERENT and compare_numbers(tensor, base).cast:
        return replace(judged, reason="these are the base model's values: the adapter was not merged into it")
    return judged


def _against_conversion(
    bare: TensorCheck, tensor: torch.Tensor, pair: StoredPair, pairing: StoredPairing
) -> TensorCheck:
    """Compares a tensor that Transformers makes of several stored ones, or of one in another form."""
    made = pairing.converted(bare.name, tensor.dtype) if pair.is_converted else None
    if made is None or made.shape != tensor.shape:
        shapes = few_of(_in_words(header.shape) for header in pair.headers)
        reason = f"the checkpoint holds {shapes}, another shape, which no load puts here"
        return replace(bare, status=TensorStatus.DIFFERENT, reason=reason)
    judged = _judge_numbers(bare, tensor, compare_numbers(tensor, made))
    is_same = judged.status in (TensorStatus.EQUAL, TensorStatus.CAST)
    return replace(judged, status=TensorStatus.TRANSFORMED) if is_same else judged


def _in_words(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "one number"


def _against_computed(bare: TensorCheck, item: LiveTensor, pairing: StoredPairing) -> TensorCheck:
    """Compares a buffer that is stored nowhere with the one that the class computes again."""
    reason = why_not_comparable(item.tensor)
    if reason:
        return replace(bare, reason=reason)
    rows = pairing.rows_behind(item)
    if rows is not None:
        return _judge_numbers(bare, item.tensor, compare_numbers(item.tensor, rows))
    fresh = pairing.computed(item)
    if fresh is None or fresh.shape != item.tensor.shape:
        return replace(bare, reason="the checkpoint does not hold it, and the class computes no such buffer")
    found = compare_numbers(item.tensor, fresh)
    judged = _judge_numbers(bare, item.tensor, found)
    # Two computations of one buffer may differ by rounding: another device sums in another order.
    is_close = item.tensor.is_floating_point() and found.is_within_rounding(item.tensor.dtype)
    if not found.cast and not is_close:
        return judged
    return replace(judged, status=TensorStatus.COMPUTED, reason="computed, not stored")


def against_saved(bare: TensorCheck, tensor: torch.Tensor, place: StoredFiles, header: TensorHeader) -> TensorCheck:
    """Compares a live tensor with the one that a save holds under its name."""
    keyed = replace(bare, keys=(header.key,))
    if header.shape != bare.shape:
        return replace(keyed, status=TensorStatus.DIFFERENT, reason=f"the save holds {_in_words(header.shape)}")
    try:
        return _judge_save(keyed, tensor, place, header)
    except HeadscopeError as err:
        return replace(keyed, reason=err.message)


def _judge_save(keyed: TensorCheck, tensor: torch.Tensor, place: StoredFiles, header: TensorHeader) -> TensorCheck:
    """Decides the status by the numbers of a save; rounding to its dtype doesn't count as a difference."""
    read = partial(place.part, header)
    found = compare_numbers(tensor, read)
    if found.has_nan or (found.has_infinite and not keyed.is_buffer):
        reason = "it holds NaN" if found.has_nan else "it holds infinite values"
        return replace(keyed, status=TensorStatus.PLACEHOLDER, reason=reason)
    if header.dtype == keyed.dtype:
        status = TensorStatus.EQUAL if found.equal else TensorStatus.DIFFERENT
        return replace(keyed, status=status, max_error=found.largest)
    is_rounded = found.cast or compare_numbers(tensor.detach().to(getattr(torch, header.dtype)), read).equal
    status = TensorStatus.CAST if is_rounded else TensorStatus.DIFFERENT
    return replace(keyed, status=status, max_error=found.largest, reason=f"stored as {header.dtype}")


def open_gaps(checks: Iterable[TensorCheck]) -> Iterator[Gap]:
    """Groups tensors that could not be compared by reason."""
    by_reason: dict[str, list[str]] = {}
    for item in checks:
        if item.status is TensorStatus.UNKNOWN and item.is_live:
            by_reason.setdefault(item.reason, []).append(item.name)
    for reason, names in by_reason.items():
        yield Gap(few_of(names), reason)


IN_A_PICKLE = "it is a classifier in a pickle, whose values headscope does not compare"


NOT_GIVEN = "the model holds a PEFT adapter, and none was given to compare with: name it with adapter=..."
