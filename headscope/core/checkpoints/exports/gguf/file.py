"""GGUF files: architecture, tensor names, shapes and formats from the header, and the head that they stand for.

The layout is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headscope.core.checkpoints.exports.gguf.head import POOLING_TYPES, read_gguf_head
from headscope.core.checkpoints.formats.bytes import ByteSource
from headscope.core.facts import TensorHeader
from headscope.core.facts.counting import counted
from headscope.core.facts.export import Inventoried, Setting, WeightInventory, contents_of
from headscope.errors import Malformed, Unsupported

GGUF_SUFFIX = ".gguf"
_AGAIN = "download or convert it again"
_LARGEST_HEADER = 64_000_000
_FIRST, _MOST_AT_ONCE = 16_384, 8_000_000
_LONGEST_NAME, _LONGEST_SETTING, _LONGEST_TEXT = 256, 65_535, 16_000_000
_MOST_TENSORS, _MOST_SETTINGS, _MOST_AXES, _MOST_LABELS = 50_000, 10_000, 4, 1000
_MOST_TEXTS = 3_000_000
"""More than any converter writes: ggml itself allows names of 64 bytes; a vocabulary has some 800,000 texts."""
_ARCHITECTURE = "general.architecture"
_KEPT = (_ARCHITECTURE, ".pooling_type", ".output_labels")
_LENGTH = struct.Struct("<Q")
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_FORMATS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


def refuse_gguf(names: Iterable[str], opened: Callable[[str], ByteSource]) -> None:
    """Raises Inventoried, with what the first of them holds, where there are GGUF files."""
    found = sorted(name for name in names if name.lower().endswith(GGUF_SUFFIX))
    if not found:
        return
    contents = read_gguf(opened(found[0]))
    more = f"; {counted(len(found) - 1, 'other GGUF file')} not read" if len(found) > 1 else ""
    raise Inventoried(
        f"{found[0]} is a GGUF file ({contents.architecture}): it holds no operations, so its head is read from names "
        f"and not traced{more}",
        f"run `headscope compare SOURCE {found[0]}` with the checkpoint it was converted from",
        contents,
    )


def read_gguf(source: ByteSource) -> WeightInventory:
    """Reads the contents of a GGUF file. Raises Malformed if it is not one, Unsupported for another version."""
    cursor = _Cursor(source)
    if cursor.take(4) != b"GGUF":
        raise Malformed(f"{source.name} is not a GGUF file", _AGAIN)
    version = cursor.number("I")
    if version not in (2, 3):
        raise Unsupported(
            f"{source.name} is GGUF of version {version}, and versions 2 and 3 are read",
            "convert it again" if version < 2 else "update headscope, or inspect its checkpoint",
        )
    tensors, settings = cursor.count(_MOST_TENSORS, "tensors"), cursor.count(_MOST_SETTINGS, "settings")
    values: dict[str, Any] = {}
    for _ in range(settings):
        name = cursor.text(_LONGEST_SETTING)
        value = _read_setting(cursor, cursor.number("I"), keep=name.endswith(_KEPT))
        if value is not None:
            values[name] = value
    # The entries follow the settings, so even unneeded settings must be passed over.
    headers = tuple(_read_tensor_entry(cursor, source.name) for _ in range(tensors))
    named = values.get(_ARCHITECTURE)
    architecture = named if isinstance(named, str) else "architecture not named"
    pooling, labels = values.get(f"{architecture}.pooling_type"), values.get(f"{architecture}.classifier.output_labels")
    pooling = pooling if isinstance(pooling, int) else None
    labels = tuple(labels) if isinstance(labels, list) else ()
    named_settings = []
    if pooling is not None:
        named_settings.append(Setting("pooling_type", POOLING_TYPES.get(pooling, str(pooling))))
    if labels:
        named_settings.append(Setting("classifier labels", ", ".join(labels)))
    return contents_of(
        source.name,
        architecture,
        headers,
        format_name="gguf",
        bytes_read=source.bytes_read,
        settings=tuple(named_settings),
        head=read_gguf_head(architecture, pooling, labels, headers),
    )


def _read_setting(cursor: "_Cursor", kind: int, *, keep: bool) -> Any:
    """Reads a setting's value if `keep`; otherwise skips it."""
    if kind in _NUMBERS:
        number = cursor.number(_NUMBERS[kind])
        return number if keep else None
    if kind == _TEXT:
        return next(cursor.texts(1, 1 if keep else 0), None)
    if kind != _ARRAY:
        raise Malformed(f"{cursor.name} holds a setting of the unknown kind {kind}", _AGAIN)
    inner, length = cursor.number("I"), cursor.number("Q")
    if inner in _NUMBERS:
        cursor.skip(length * struct.calcsize(_NUMBERS[inner]))
        return None
    if inner != _TEXT:
        raise Malformed(f"{cursor.name} holds an array of the kind {inner}, which headscope doesn't read", _AGAIN)
    kept = list(cursor.texts(length, _MOST_LABELS if keep else 0))
    return kept if keep else None


def _read_tensor_entry(cursor: "_Cursor", file: str) -> TensorHeader:
    """Reads a tensor's entry; ggml counts axes from the innermost, PyTorch from the outermost."""
    name = cursor.text(_LONGEST_NAME)
    axes = cursor.number("I")
    if axes > _MOST_AXES:
        raise Malformed(f"{cursor.name} holds a tensor of {axes} axes", _AGAIN)
    shape = tuple(cursor.number("Q") for _ in range(axes))
    kind = cursor.number("I")
    cursor.skip(8)
    return TensorHeader(name, _FORMATS.get(kind, f"format {kind}"), shape[::-1], file)


class _Cursor:
    """Reader of a header from its beginning on; it fetches ahead in growing parts."""

    def __init__(self, source: ByteSource) -> None:
        self.name = source.name
        self._source = source
        self._data = b""
        self._start = 0
        self._at = 0
        self._texts = 0

    def take(self, length: int) -> bytes:
        """Reads the next bytes. Raises Malformed if the file or the limit ends before."""
        self._fetch_ahead(length)
        begin = self._at - self._start
        self._at += length
        return self._data[begin : begin + length]

    def skip(self, length: int) -> None:
        """Passes over bytes without fetching them."""
        self._at += length
        self._check_limits(self._at)

    def number(self, code: str) -> Any:
        """Reads the next little-endian number."""
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def count(self, limit: int, what: str) -> int:
        """Reads how many `what` follow. Raises Malformed for more than `limit`."""
        found: int = self.number("Q")
        if found > limit:
            raise Malformed(f"{self.name} announces {found:,} {what}, over the limit of {limit:,}", _AGAIN)
        return found

    def text(self, limit: int) -> str:
        """Reads the next text. Raises Malformed for one over the limit."""
        return self._take_text(limit).decode("utf-8", "replace")

    def texts(self, count: int, keep: int) -> Iterator[str]:
        """Reads the first `keep` of the next `count` texts, cut to a readable length; passes over the others."""
        self._texts += count
        if self._texts > _MOST_TEXTS:
            raise Malformed(f"{self.name} announces {self._texts:,} texts, over the limit of {_MOST_TEXTS:,}", _AGAIN)
        for _ in range(min(keep, count)):
            yield self._take_text(_LONGEST_TEXT)[:_LONGEST_NAME].decode("utf-8", "replace")
        left = count - min(keep, count)
        while left:
            left -= self._pass_texts(left)
            if left:  # the next one is not wholly here
                self._take_text(_LONGEST_TEXT)
                left -= 1

    def _pass_texts(self, count: int) -> int:
        """Passes over at most `count` texts of those that were fetched, and counts them."""
        data, at, passed = self._data, self._at - self._start, 0
        while passed < count and at + _LENGTH.size <= len(data):
            end = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
            if end > len(data):
                break
            at, passed = end, passed + 1
        self._at = self._start + at
        return passed

    def _take_text(self, limit: int) -> bytes:
        length = self.number("Q")
        if length > limit:
            raise Malformed(f"{self.name} announces a text of {length:,} bytes", _AGAIN)
        return self.take(length)

    def _fetch_ahead(self, length: int) -> None:
        end = self._at + length
        if end <= self._start + len(self._data):
            return
        self._check_limits(end)
        # A skip may have moved behind what was fetched; then nothing of it is left.
        rest = self._data[self._at - self._start :] if self._at < self._start + len(self._data) else b""
        begin = self._at + len(rest)
        ahead = max(length - len(rest), min(max(_FIRST, self._at), _MOST_AT_ONCE))
        more = self._source.read_at(begin, min(ahead, self._source.size - begin))
        self._start, self._data = self._at, rest + more

    def _check_limits(self, end: int) -> None:
        if end > self._source.size:
            raise Malformed(
                f"{self.name} is not a whole GGUF file: it ends inside its header, after {self._source.size:,} bytes",
                _AGAIN,
            )
        if end > _LARGEST_HEADER:
            raise Unsupported(
                f"the header of {self.name} is over the limit of {_LARGEST_HEADER:,} bytes", "inspect its checkpoint"
            )
