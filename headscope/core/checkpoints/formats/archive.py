"""The directory of a PyTorch zip file, read as strictly as `torch.load` does: names, sizes, places of records."""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from headscope.core.checkpoints.formats.bytes import ByteSource, RangeFile
from headscope.errors import Malformed

_END, _END64, _LOCATOR, _ENTRY, _LOCAL = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x01\x02", b"PK\x03\x04"
_END_SIZE, _LOCATOR_SIZE, _END64_SIZE, _ENTRY_SIZE, _LOCAL_SIZE = 22, 20, 56, 46, 30
_LARGEST_DIRECTORY = 8_000_000
_LONGEST_COMMENT = 65_535
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_ZIP64_FIELD = 1
_ENCRYPTED = 1
_FIRST_VERSION, _LAST_VERSION = 1, 10
_LONGEST_VERSION = 20
_LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class Record:
    """A file in the archive: its size, where its local header begins, how it is packed, its checksum."""

    size: int
    packed: int
    at: int
    method: int
    checksum: int


@dataclass(frozen=True, slots=True)
class _Directory:
    """Place of the directory, and the number of its entries."""

    at: int
    size: int
    entries: int


def bad_file(name: str, what: str) -> Malformed:
    """Builds the error for a file that `torch.load` would refuse."""
    return Malformed(
        f"{name} is not a valid PyTorch file: {what}", "download it again, or load it and save it as safetensors"
    )


class Archive:
    """Records of a PyTorch zip file. All of them are in one folder, named by the first.

    Raises Malformed if the directory contradicts itself or the file, if a record is listed twice, and if the `version`
    record is missing or out of range.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        tail_at = max(0, source.size - _END_SIZE - _LONGEST_COMMENT)
        self._tail_at, self._tail = tail_at, source.read_at(tail_at, source.size - tail_at)
        listed = list(self._read_entries(self._find_directory()))
        if not listed:
            raise self._archive_error("its zip directory is empty")
        self.folder = listed[0][0].partition("/")[0] + "/"
        if "/" not in listed[0][0]:
            raise self._archive_error(f"its first record {listed[0][0][:80]!r} is not in a folder")
        self.records = dict(listed)
        if len(self.records) < len(listed):
            raise self._archive_error("a record is listed twice")
        text = self.read("version", _LONGEST_VERSION).strip()
        if not (text.isdigit() and _FIRST_VERSION <= int(text) <= _LAST_VERSION):
            raise self._archive_error(
                f"its version record says {text!r} where {_FIRST_VERSION} to {_LAST_VERSION} is expected"
            )

    def _archive_error(self, what: str) -> Malformed:
        return bad_file(self._source.name, what)

    def read(self, name: str, largest: int) -> bytes:
        """Reads the content of a record in the archive's folder. Raises Malformed if it is packed, cut or damaged."""
        record = self._stored_record(name)
        if record.size > largest:
            raise self._archive_error(f"its {name} of {record.size:,} bytes is over the limit of {largest:,}")
        file = RangeFile(self._source)
        file.seek(self._data_at(name, record, file))
        content = file.read(record.size)
        if len(content) != record.size or zlib.crc32(content) != record.checksum:
            raise self._archive_error(f"its {name} is cut or damaged")
        return content

    def place_of(self, name: str) -> tuple[int, int]:
        """Finds the content of a record: its first byte, and the byte after its last. Raises Malformed."""
        record = self._stored_record(name)
        begin = self._data_at(name, record, RangeFile(self._source, block=_LOCAL_SIZE + _LONGEST_NAME))
        return begin, begin + record.size

    def _stored_record(self, name: str) -> Record:
        record = self.records.get(self.folder + name)
        if record is None:
            raise self._archive_error(f"it has no {name} record, which torch.load requires")
        if record.method or record.packed != record.size:
            raise self._archive_error(f"its {name} is compressed, which PyTorch never writes")
        return record

    def _data_at(self, name: str, record: Record, file: RangeFile) -> int:
        """Finds where a record's content begins: after its local header, whose length only that header gives."""
        file.seek(record.at)
        header = file.read(_LOCAL_SIZE)
        if len(header) < _LOCAL_SIZE or header[:4] != _LOCAL:
            raise self._archive_error(f"there is no record where its directory places {name}")
        name_size, extra_size = (int(size) for size in struct.unpack("<2H", header[26:]))
        if file.read(name_size) != (self.folder + name).encode():
            raise self._archive_error(f"another record is where its directory places {name}")
        return record.at + _LOCAL_SIZE + name_size + extra_size

    def _find_directory(self) -> _Directory:
        """Finds the directory by the record at the end of the file."""
        # The last one counts: a comment of up to 65,535 bytes may follow it.
        at = self._tail.rfind(_END, 0, len(self._tail) - _END_SIZE + len(_END))
        if at < 0:
            raise self._archive_error("its zip archive has no end record")
        disk, first_disk, here, total, size, start, comment = struct.unpack("<4H2IH", self._tail[at + 4 : at + 22])
        if at + _END_SIZE + comment != len(self._tail):
            raise self._archive_error("its zip archive does not end where its end record says")
        end = self._tail_at + at
        found = _Directory(start, size, total)
        locator = self._tail[max(0, at - _LOCATOR_SIZE) : at]
        if locator[:4] == _LOCATOR:
            end, found = self._find_large_directory(end, locator, found)
        elif disk or first_disk or here != total:
            raise self._archive_error("its zip archive is one part of several")
        if found.at + found.size != end:
            raise self._archive_error("its zip directory is not where its end record says")
        if found.size > _LARGEST_DIRECTORY:
            raise self._archive_error(
                f"its zip directory of {found.size:,} bytes is over the limit of {_LARGEST_DIRECTORY:,}"
            )
        return found

    def _find_large_directory(self, end: int, locator: bytes, small: _Directory) -> tuple[int, _Directory]:
        """Finds the directory by the zip64 record, if the one at the end leaves it to that."""
        first_disk, at, disks = struct.unpack("<IQI", locator[4:])
        if first_disk or disks > 1 or at + _END64_SIZE + _LOCATOR_SIZE != end:
            raise self._archive_error("its zip64 record is not where its locator says")
        text = self._read_bytes(at, _END64_SIZE)
        length, _, _, disk, first, here, total, size, start = struct.unpack("<Q2H2I4Q", text[4:])
        if text[:4] != _END64 or length != _END64_SIZE - 12 or disk or first or here != total:
            raise self._archive_error("its zip64 record cannot be read")
        for declared, limit, found in (
            (small.at, _FULL32, start),
            (small.size, _FULL32, size),
            (small.entries, _FULL16, total),
        ):
            if declared not in (limit, found):
                raise self._archive_error("its two end records contradict each other")
        return at, _Directory(start, size, total)

    def _read_bytes(self, at: int, length: int) -> bytes:
        # The tail was read anyway; the directory of most files is inside it.
        begin = at - self._tail_at
        return self._tail[begin : begin + length] if begin >= 0 else self._source.read_at(at, length)

    def _read_entries(self, directory: _Directory) -> Iterator[tuple[str, Record]]:
        text, at = self._read_bytes(directory.at, directory.size), 0
        if directory.entries * _ENTRY_SIZE > len(text):
            raise self._archive_error(f"its zip directory cannot hold the {directory.entries:,} records it announces")
        for _ in range(directory.entries):
            fixed = text[at : at + _ENTRY_SIZE]
            if len(fixed) < _ENTRY_SIZE or fixed[:4] != _ENTRY:
                raise self._archive_error("its zip directory cannot be read")
            flags, method = struct.unpack("<2H", fixed[8:12])
            checksum, packed, size, names, extras, comments, disk = struct.unpack("<3I4H", fixed[16:36])
            (place,) = struct.unpack("<I", fixed[42:])
            name_at, at = at + _ENTRY_SIZE, at + _ENTRY_SIZE + names + extras + comments
            if at > len(text) or flags & _ENCRYPTED or disk not in (0, _FULL16):
                raise self._archive_error("its zip directory cannot be read")
            extra = text[name_at + names : name_at + names + extras]
            size, packed, place = self._widen_numbers((size, packed, place), extra)
            # PyTorch writes the directory behind all records.
            if place + _LOCAL_SIZE + packed > directory.at:
                raise self._archive_error("a record is not before its zip directory")
            name = text[name_at : name_at + names].decode("utf-8", "backslashreplace")
            yield name, Record(size, packed, place, method, checksum)
        if at != len(text):
            raise self._archive_error("its zip directory holds more than the records it announces")

    def _widen_numbers(self, declared: tuple[int, ...], extra: bytes) -> tuple[int, ...]:
        """Takes size, packed size and place each from the zip64 field if its own 32 bits are full."""
        if _FULL32 not in declared:
            return declared
        wide = self._zip64_numbers(extra)
        if len(wide) < declared.count(_FULL32):
            raise self._archive_error("a record of over 4 GB has no size")
        left = iter(wide)
        return tuple(next(left) if value == _FULL32 else value for value in declared)

    def _zip64_numbers(self, extra: bytes) -> tuple[int, ...]:
        at = 0
        while at + 4 <= len(extra):
            kind, length = struct.unpack("<2H", extra[at : at + 4])
            if kind == _ZIP64_FIELD:
                count = min(length, len(extra) - at - 4) // 8
                return struct.unpack(f"<{count}Q", extra[at + 4 : at + 4 + 8 * count])
            at += 4 + length
        return ()
