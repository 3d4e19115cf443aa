"""The weight files of a checkpoint: which of them `from_pretrained` would take, and the tensors in them."""

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from headscope.core.checkpoints.exports.refusal import refuse_exports
from headscope.core.checkpoints.formats.bytes import FIRST_BYTES, ByteSource
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.checkpoints.formats.safetensors_header import read_safetensors_header
from headscope.core.facts import CheckpointManifest, Gap, TensorHeader, WeightFile, WeightsFormat
from headscope.core.facts.counting import counted, list_of
from headscope.core.facts.stored.location import is_file_name, is_path_inside
from headscope.errors import Malformed, NotFound, Unsupported, UsageError

_OTHER_SUFFIXES = {
    ".h5": "TensorFlow",
    ".msgpack": "Flax",
    ".ckpt.index": "TensorFlow",
}
_VARIANT_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
VARIANT_FILE = re.compile(
    r"(model|pytorch_model)\.(?P<variant>(?!safetensors|bin\b)[A-Za-z0-9_-]{1,40}?)(-\d+-of-\d+)?\.(safetensors|bin)"
    r"|(model\.safetensors|pytorch_model\.bin)\.index\.(?P<index_variant>[A-Za-z0-9_-]{1,40})\.json"
)
_ADAPTER_LAYOUTS = ("adapter_model.safetensors", "adapter_model.bin")
# The index names the keys of each shard, which tells how long its header is: so one request brings it, not two.
_HEADER_START = 64
_HEADER_ENTRY = 90
_MOST_AT_ONCE = 1_000_000


class FileStorage(Protocol):
    """A place that holds the files of one checkpoint."""

    def names(self) -> tuple[str, ...]:
        """Lists the files there, as far as the place can list them."""
        ...

    def names_at_hand(self) -> tuple[str, ...] | None:
        """Lists the files if that costs no request; None otherwise."""
        ...

    def has(self, name: str) -> bool:
        """True if a file of that name is there, found out in the cheapest way."""
        ...

    def read_text(self, name: str) -> bytes:
        """Reads a small file whole. Raises NotFound."""
        ...

    def open(self, name: str, first: int = FIRST_BYTES) -> ByteSource:
        """Opens a large file for reads by range; its first bytes are needed right away. Raises NotFound."""
        ...


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Contents of the weight files of a checkpoint."""

    format: WeightsFormat
    tensors: tuple[TensorHeader, ...] = ()
    files: tuple[WeightFile, ...] = ()
    shared: tuple[tuple[str, ...], ...] = ()
    gaps: tuple[Gap, ...] = ()
    notices: tuple[str, ...] = ()
    bytes_read: int = 0
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Layout:
    """A way to store weights: a single file, or an index that names the shards."""

    name: str
    format: WeightsFormat
    is_index: bool


# In the order in which `from_pretrained` looks: another order would report weights that nobody gets.
_LAYOUTS = (
    _Layout("model.safetensors", WeightsFormat.SAFETENSORS, False),
    _Layout("model.safetensors.index.json", WeightsFormat.SAFETENSORS, True),
    _Layout("pytorch_model.bin", WeightsFormat.TORCH, False),
    _Layout("pytorch_model.bin.index.json", WeightsFormat.TORCH, True),
)


def read_weights(storage: FileStorage, config: Mapping[str, Any], variant: str | None = None) -> StoredWeights:
    """Reads the tensors of the weight files that `from_pretrained` would load.

    These are the files that the configuration names, or safetensors before PyTorch's; with a `variant`, only files of
    that variant. Weights of another format beside them are mentioned if the names of all files are at hand. Raises
    Unsupported if only other formats are there, NotFound for a variant that is not there. A missing shard leaves a gap.
    """
    if config.get("transformers_weights") is not None:
        return _read_chosen(storage, config["transformers_weights"])
    layouts = _LAYOUTS if variant is None else _layouts_of(variant)
    taken = next((layout for layout in layouts if storage.has(layout.name)), None)
    if taken is not None:
        weights = _read_index(storage, taken) if taken.is_index else _read_files(storage, taken.format, [taken.name])
        there = set(storage.names_at_hand() or ())
        notices = weights.notices
        # Weights of the other format may hold other tensors.
        others = [layout.name for layout in _LAYOUTS if layout.format is not taken.format and layout.name in there]
        if others:
            why = f"Transformers takes {taken.format.value}, and so it was not read"
            notices = (*notices, f"{others[0]} is there too; {why}")
        # `save_pretrained` leaves older shards beside the single file that it writes.
        stem, _, ending = taken.name.rpartition(".")
        shard = re.compile(rf"{re.escape(stem)}-\d{{5}}-of-\d{{5}}\.{ending}")
        return replace(weights, notices=notices, unread=tuple(sorted(filter(shard.fullmatch, there))))
    names = set(storage.names())
    if variant is not None:
        raise _no_variant_error(variant, names)
    _refuse_variants(names)
    refuse_exports(names, storage.open)
    _refuse_other_formats(names)
    gap = Gap("weights", "the checkpoint holds no weight file that headscope reads (safetensors or PyTorch)")
    return StoredWeights(WeightsFormat.NONE, gaps=(gap,))


def read_adapter_weights(storage: FileStorage) -> StoredWeights:
    """Reads the tensors of a PEFT adapter's weight file. A missing file leaves a gap."""
    names = set(storage.names())
    for name in _ADAPTER_LAYOUTS:
        if name in names:
            return read_weight_file(storage, name)
    gap = Gap("adapter weights", f"the adapter holds neither {' nor '.join(_ADAPTER_LAYOUTS)}")
    return StoredWeights(WeightsFormat.NONE, gaps=(gap,))


def _read_chosen(storage: FileStorage, name: Any) -> StoredWeights:
    """Reads the file that `transformers_weights` of the configuration names, which must be inside the checkpoint."""
    if not is_path_inside(name):
        raise Malformed(
            f"transformers_weights in config.json is {str(name)[:80]!r}, which is not a file inside the checkpoint",
            "don't load this checkpoint until you know why",
        )
    if name.endswith(".safetensors.index.json"):
        return _read_index(storage, _Layout(name, WeightsFormat.SAFETENSORS, True))
    if name.endswith(".safetensors"):
        return _read_files(storage, WeightsFormat.SAFETENSORS, [name])
    raise Unsupported(
        f"transformers_weights in config.json names {name}, which is not a safetensors file", "correct config.json"
    )


def read_weight_file(storage: FileStorage, name: str) -> StoredWeights:
    """Reads the tensors of one named weight file."""
    is_safetensors = name.endswith(".safetensors")
    return _read_files(storage, WeightsFormat.SAFETENSORS if is_safetensors else WeightsFormat.TORCH, [name])


def with_weight_file(manifest: CheckpointManifest, storage: FileStorage, name: str) -> CheckpointManifest:
    """Adds the tensors of one more file, which replace those with the same keys, as in the loader."""
    more = read_weight_file(storage, name)
    tensors = {tensor.key: tensor for tensor in (*manifest.tensors, *more.tensors)}
    return replace(
        manifest,
        tensors=tuple(tensors.values()),
        files=(*manifest.files, *more.files),
        shared=(*manifest.shared, *more.shared),
        bytes_read=manifest.bytes_read + more.bytes_read,
    )


def _refuse_variants(names: Iterable[str]) -> None:
    """Raises Unsupported where the weights are there in a variant only (`model.fp16.safetensors`)."""
    # from_pretrained looks for a variant only with variant=...
    found = sorted(name for name in names if _variant_in(name))
    if found:
        raise Unsupported(
            f"the weights exist only as a variant: {found[0]}, which from_pretrained takes with variant=...",
            f"add --variant {_variant_in(found[0])}",
        )


def _variant_in(name: str) -> str | None:
    """Gives the variant in a file name; None for none."""
    match = VARIANT_FILE.fullmatch(name)
    return match and (match["variant"] or match["index_variant"])


def _layouts_of(variant: str) -> tuple[_Layout, ...]:
    """Gives the layouts with a variant in their names, where Transformers puts it: before the last ending."""
    if not _VARIANT_NAME.fullmatch(variant):
        raise UsageError(f"--variant {variant!r} is not the name of a variant", "variants are named like fp16")
    found = []
    for layout in _LAYOUTS:
        stem, _, ending = layout.name.rpartition(".")
        found.append(replace(layout, name=f"{stem}.{variant}.{ending}"))
    return tuple(found)


def _no_variant_error(variant: str, names: Iterable[str]) -> NotFound:
    """Builds the error for a variant that is not there; its hint names those that are."""
    there = sorted({found for name in names if (found := _variant_in(name))})
    plain = any(layout.name in names for layout in _LAYOUTS)
    hint = f"variants there: {', '.join(there)}" if there else "no variant is there"
    wanted = ", ".join(layout.name for layout in _layouts_of(variant))
    return NotFound(
        f"the checkpoint holds no weights of the variant {variant} ({wanted})",
        f"{hint}; without --variant the usual weights are read" if plain else hint,
    )


def _refuse_other_formats(names: Iterable[str]) -> None:
    found = {}
    for name in sorted(names):
        kind = next((kind for suffix, kind in _OTHER_SUFFIXES.items() if name.endswith(suffix)), None)
        if kind:
            found[name] = kind
    if found:
        listed = ", ".join(f"{name} ({kind})" for name, kind in found.items())
        raise Unsupported(f"headscope doesn't read the format of the weights: {listed}", "convert them to safetensors")


def _read_index(storage: FileStorage, layout: _Layout) -> StoredWeights:
    text = storage.read_text(layout.name)
    weight_map = parse_object(text, layout.name).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise Malformed(f"{layout.name} has no weight_map from tensor names to files", "save the checkpoint again")
    shards = _header_sizes(weight_map, layout.name)
    weights = _read_files(storage, layout.format, sorted(shards), shards)
    notices = _notice_of_absent_tensors(weights, weight_map, layout.name)
    return replace(weights, notices=notices, bytes_read=weights.bytes_read + len(text))


def _header_sizes(weight_map: dict[str, Any], index: str) -> dict[str, int]:
    """Estimates the bytes of each shard's header: an entry is its key and some 90 bytes."""
    sizes: dict[str, int] = {}
    for key, value in weight_map.items():
        shard = _shard_name(value, index)
        sizes[shard] = sizes.get(shard, _HEADER_START) + len(key.encode("utf-8", "replace")) + _HEADER_ENTRY
    return {shard: min(size, _MOST_AT_ONCE) for shard, size in sizes.items()}


def _shard_name(value: Any, index: str) -> str:
    """Checks that a value is a file name beside the index. Raises Malformed for a path that could lead elsewhere."""
    if not is_file_name(value):
        raise Malformed(
            f"{index} names the shard {str(value)[:80]!r}, which is not a file name beside it",
            "a weight_map holds plain file names; don't load this checkpoint until you know why",
        )
    return str(value)


def _notice_of_absent_tensors(weights: StoredWeights, weight_map: dict[str, Any], index: str) -> tuple[str, ...]:
    """Mentions keys that the index promises and no shard holds.

    It is not a gap: `from_pretrained` loads what the shards hold, whatever the index says, and so these are missing.
    """
    missing_files = {file.name for file in weights.files if file.size is None}
    held = {tensor.key for tensor in weights.tensors}
    absent = [key for key, shard in weight_map.items() if key not in held and shard not in missing_files]
    if not absent:
        return ()
    return (f"{index} lists {counted(len(absent), 'tensor')} that no shard holds, the first is {absent[0]}",)


def _read_files(
    storage: FileStorage, format_: WeightsFormat, names: list[str], listed: Mapping[str, int] | None = None
) -> StoredWeights:
    """Reads the named files together; `listed` are those of an index, with header sizes: missing ones are a gap."""
    contexts = [copy_context() for _ in names]  # the threads belong to what this reading is bounded and watched by
    # Each shard is one request that mostly waits.
    with ThreadPoolExecutor(max_workers=8) as pool:
        read = partial(_read_part, storage, format_, listed=listed)
        parts = list(pool.map(lambda name, context: context.run(read, name), names, contexts))
    files = tuple(file for part in parts for file in part.files)
    gaps = _missing_shards([file.name for file in files if file.size is None], len(files))
    if not gaps and not any(part.tensors for part in parts):
        gaps = (Gap("weights", "the weight files hold no tensor"),)
    return StoredWeights(
        format=format_,
        tensors=tuple({tensor.key: tensor for part in parts for tensor in part.tensors}.values()),
        files=files,
        shared=tuple(group for part in parts for group in part.shared),
        gaps=gaps,
        bytes_read=sum(part.bytes_read for part in parts),
    )


def _missing_shards(names: list[str], total: int) -> tuple[Gap, ...]:
    """Makes one gap for all shards that are not there: a large checkpoint has hundreds."""
    if not names:
        return ()
    if len(names) == 1:
        return (Gap(names[0], "the shard is missing"),)
    what = f"{len(names):,} of {total:,} shards"
    return (Gap(what, f"the shards are missing: {list_of(names, 3)}"),)


def _read_part(
    storage: FileStorage, format_: WeightsFormat, name: str, listed: Mapping[str, int] | None
) -> StoredWeights:
    """Reads one weight file. A missing one has no size; only an index may list it."""
    # A PyTorch file is a zip file with its directory at the end, so an estimate of its beginning would not help.
    first = listed[name] if listed and format_ is WeightsFormat.SAFETENSORS else FIRST_BYTES
    try:
        source = storage.open(name, first)
    except NotFound:
        if listed is None:
            raise
        # Only the shards of an index may be missing: they become a gap.
        return StoredWeights(format_, files=(WeightFile(name),))
    _refuse_stand_ins(source)
    file = WeightFile(name, source.size)
    if format_ is WeightsFormat.SAFETENSORS:
        # No two tensors of such a file share data.
        return StoredWeights(format_, read_safetensors_header(source), (file,), bytes_read=source.bytes_read)
    from headscope.core.checkpoints.formats.torch_file import read_torch_headers  # pickles are rare

    tensors, shared = read_torch_headers(source)
    return StoredWeights(format_, tensors, (file,), shared, bytes_read=source.bytes_read)


_STAND_INS = {
    b"version https://git-lfs": ("a Git LFS pointer", "run `git lfs pull` in the folder"),
    b"<!doctype html": ("an HTML page", "download the file itself, not the page that shows it"),
    b"<html": ("an HTML page", "download the file itself, not the page that shows it"),
}


def _refuse_stand_ins(source: ByteSource) -> None:
    """Raises Malformed for what ends up under a weight file's name: nothing, a pointer, a web page."""
    if source.size == 0:
        raise Malformed(f"{source.name} is empty", "download or save the file again")
    start = source.read_at(0, min(source.size, 64)).lstrip().lower()
    for sign, (what, hint) in _STAND_INS.items():
        if start.startswith(sign):
            raise Malformed(f"{source.name} is {what}, not weights", hint)
