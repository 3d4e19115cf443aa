"""Files in the place of weights: other formats, Git LFS pointers, downloads that were not finished."""

import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.checkpoints.states.place import Found, StatePlace, names_below
from headscope.core.facts import CheckpointState, Repair, StateKind
from headscope.core.facts.counting import counted, few_of
from headscope.core.facts.stored.location import is_file_name
from headscope.errors import HeadscopeError

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_POINTER = b"version https://git-lfs.github.com/spec/"
_SIZE = re.compile(rb"^size (\d{1,20})$", re.MULTILINE)
_LARGEST_FILE = 2**44
"""Bytes that no weight file has: offsets beyond it lie."""
_HEADER = 25_000_000
_OFFSETS = re.compile(rb'"data_offsets"\s{0,9}:\s{0,9}\[\s{0,9}\d{1,19}\s{0,9},\s{0,9}(\d{1,19})\s{0,9}\]')
_ZIP, _ZIP_END, _TAIL = b"PK\x03\x04", b"PK\x05\x06", 65_557
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SHARD = re.compile(r"([^.]+)-(\d{5})-of-(\d{5})(\.safetensors|\.bin)")


def find_pointers(place: StatePlace) -> Found | None:
    """Finds the state of a clone of a repository whose large files were not fetched."""
    pointers = [(name, size) for name in place.top() if (size := _size_in_pointer(place, name)) is not None]
    if not pointers:
        return None
    name, size = pointers[0]
    state = CheckpointState(
        StateKind.POINTER,
        tool="git clone without Git LFS",
        sentence=f"{name} is a Git LFS pointer, not weights: a text of {place.size(name)} bytes instead of the file.",
        evidence=(
            f"{few_of(each for each, _ in pointers)} {'is a pointer' if len(pointers) == 1 else 'are pointers'}",
            f"the pointer stands for a file of {size:,} bytes",
        ),
        repair=Repair(
            "Fetch the files that the pointers stand for, in the folder:", "git lfs install && git lfs pull", "sh"
        ),
    )
    return Found(state)


def _size_in_pointer(place: StatePlace, name: str) -> int | None:
    """Reads the size that a pointer names; None for a file that is not a pointer."""
    if not name.endswith((*WEIGHTS, ".h5", ".msgpack", ".onnx", ".gguf", ".json")):
        return None
    text = place.start(name, 1024)
    match = _SIZE.search(text) if text.startswith(_POINTER) else None
    return int(match[1]) if match else None


_OF_HUB, _OF_ARIA = ".incomplete", ".aria2"
_LEFT_BY = {
    _OF_HUB: "the Hub's client",
    _OF_ARIA: "aria2",
    ".crdownload": "a browser",
    ".part": "a browser or wget",
    ".download": "a browser",
}
_UNFINISHED, _BLOBS = ".cache/huggingface/download", "blobs"
_NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")
_IN_CACHE = re.compile(
    r"[/\\]models--(?P<owner>\w[\w.-]*?)--(?P<name>\w[\w.-]*)[/\\]snapshots[/\\](?P<commit>[0-9a-f]{40})?"
)


def find_half_download(place: StatePlace) -> Found | None:
    """Finds the state of an interrupted download: missing shards, files that end early, and the marks of the tools.

    A mark alone says nothing: it may have stayed behind, or belong to another file.
    """
    marks = list(_download_marks(place))
    missing = list(_missing_shards(place))
    cut = [(name, short) for name in place.top() if (short := _how_cut(place, name))]
    # aria2 removes its mark at the end: a file with one is not whole.
    unfinished = {name.removesuffix(_OF_ARIA) for name, _ in marks if name.endswith(_OF_ARIA)}
    has_weights = any(is_weight_file(name) and name not in unfinished for name in place.top())
    if not missing and not cut and not (marks and not has_weights):
        return None
    evidence = [f"{few_of(name.rpartition('/')[2] for name, _ in marks)} was left by {marks[0][1]}"] if marks else []
    names = "the index names" if any(name in place.names for name in _INDEXES) else "the names of the shards promise"
    evidence += [f"{names} {counted(len(missing), 'file')} not here: {few_of(missing)}"] if missing else []
    evidence += [f"{name} {short}" for name, short in cut]
    state = CheckpointState(
        StateKind.HALF_DOWNLOAD,
        tool=marks[0][1] if marks else "",
        sentence="The checkpoint is not complete: a download or a copy was interrupted.",
        evidence=tuple(evidence),
        repair=_download_repair(place),
    )
    return Found(state)


def _download_marks(place: StatePlace) -> Iterator[tuple[str, str]]:
    """Lists the marks of downloads of weights, with the tool that leaves them.

    They are in the folder itself, and where the Hub's client keeps what it has not finished.
    """
    for name in (*place.names, *_unfinished_blobs(place)):
        end = next((end for end in _LEFT_BY if name.endswith(end)), None)
        folder, _, file = name.rpartition("/")
        of_hub = folder in {_UNFINISHED, _BLOBS} and end == _OF_HUB
        if end is not None and (of_hub or (not folder and is_weight_file(file.removesuffix(end)))):
            yield name, _LEFT_BY[end]


def _unfinished_blobs(place: StatePlace) -> Iterator[str]:
    """Lists the unfinished files of the Hub's cache that a snapshot is in."""
    match = _IN_CACHE.search(place.name)
    if match is None:
        return
    path = Path(place.name[: match.end("name")], _BLOBS)
    yield from (f"{_BLOBS}/{name}" for name in names_below(path, 1) if name.endswith(_OF_HUB))


def is_weight_file(name: str) -> bool:
    """True if a name is one of weights, and not of what a training run saves beside them."""
    return name.endswith(WEIGHTS) and not name.startswith(_NO_WEIGHTS)


def _download_repair(place: StatePlace) -> Repair:
    """Gives the command that downloads what is missing: into the Hub's cache, if the folder is one of it."""
    match = _IN_CACHE.search(place.name)
    if match is None:
        sentence = "Download it again, which resumes the download; OWNER/NAME is the model's Hub ID:"
        return Repair(sentence, "hf download OWNER/NAME --local-dir .", "sh")
    commit = f" --revision {match['commit']}" if match["commit"] else ""
    sentence = "Download it into the cache again, which resumes the download:"
    return Repair(sentence, f"hf download {match['owner']}/{match['name']}{commit}", "sh")


def _missing_shards(place: StatePlace) -> Iterator[str]:
    here = set(place.top())
    for index in _INDEXES:
        if index not in here:
            continue
        try:
            shards = parse_object(place.text(index), index).get("weight_map")
        except HeadscopeError:
            continue
        names = set(shards.values()) if isinstance(shards, dict) and all(map(is_file_name, shards.values())) else set()
        yield from sorted(names - here)
    # An index knows its shards better than their names do.
    sets = [] if here.intersection(_INDEXES) else list(shard_sets(here))
    if not any(here.issuperset(names) for names in sets):
        yield from sorted({name for names in sets for name in names} - here)


def shard_sets(here: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Lists the names of every set of shards, as save_pretrained names them, whether they are there or not.

    The first of them has the number 1, or 0 if that is there. A variant (`model.fp16-`) has to be asked for.
    """
    matches = filter(None, map(_SHARD.fullmatch, sorted(here)))
    found = dict.fromkeys(match.group(1, 3, 4) for match in matches if int(match[3]))
    for stem, total, end in found:
        first = 0 if f"{stem}-{0:05d}-of-{total}{end}" in here else 1
        yield tuple(f"{stem}-{at:05d}-of-{total}{end}" for at in range(first, first + int(total)))


def _how_cut(place: StatePlace, name: str) -> str:
    """Describes how a weight file ends early; "" for one that does not, or that is of no format that tells."""
    if not name.endswith(WEIGHTS):
        return ""
    size, start = place.size(name), place.start(name, 8)
    if start[:4] == _ZIP:
        # The end record of a zip file may be followed by a comment of up to 65,535 bytes.
        at = max(0, size - _TAIL)
        try:
            tail = place.open(name).read_at(at, size - at)
        except HeadscopeError:
            tail = b""
        return "" if _ZIP_END in tail else f"ends early: {size:,} bytes are there, without the end of its archive"
    if not name.endswith(".safetensors") or len(start) < 8:
        return ""
    (length,) = struct.unpack("<Q", start)
    if not 0 < length <= _HEADER or place.start(name, 9)[8:] not in {b"", b"{"}:  # a header is a JSON object
        return ""
    header = place.start(name, 8 + length)[8:]
    expected = 8 + length
    if len(header) == length:  # searched and not parsed: nothing else of it is needed
        expected += max((int(match[1]) for match in _OFFSETS.finditer(header)), default=0)
    is_early = size < expected < _LARGEST_FILE
    return f"ends early: {expected:,} bytes were expected, {size:,} are there" if is_early else ""


_OTHER = {
    ".h5": "TensorFlow",
    ".msgpack": "Flax",
    ".ckpt.index": "TensorFlow",
    ".mlmodel": "Core ML",
    ".mlpackage": "Core ML",
    ".tflite": "TensorFlow Lite",
    ".ot": "rust-bert",
}
_LOADED_BEFORE = {"TensorFlow": "from_tf", "Flax": "from_flax"}


def find_other_format(place: StatePlace) -> Found | None:
    """Finds the state of a place whose weights are only in the formats of other frameworks."""
    if any(name.endswith((".safetensors", ".bin", ".gguf")) for name in place.top()):
        return None
    names = (*place.top(), *place.folders())
    found = {name: kind for name in names for end, kind in _OTHER.items() if name.endswith(end)}
    if not found:
        return None
    listed = ", ".join(f"{name} ({kind})" for name, kind in list(found.items())[:4])
    kind = next((kind for kind in found.values() if kind in _LOADED_BEFORE), next(iter(found.values())))
    state = CheckpointState(
        StateKind.OTHER_FORMAT,
        tool=kind,
        sentence=f"headscope doesn't read the format of these weights: {listed}. Transformers 5 loads safetensors and "
        "PyTorch's files only.",
        evidence=(f"{counted(len(found), 'file')} of {' and '.join(dict.fromkeys(found.values()))}, no other weights",),
        repair=_conversion_repair(kind),
    )
    return Found(state)


def _conversion_repair(kind: str) -> Repair | None:
    """Gives the code for Transformers 4, which converts what it could read; None for exports, which only run."""
    option = _LOADED_BEFORE.get(kind)
    if option is None:
        return None
    code = (
        "from transformers import AutoModelForSequenceClassification\n"
        f"model = AutoModelForSequenceClassification.from_pretrained('.', {option}=True)\n"
        "model.save_pretrained('.', safe_serialization=True)"
    )
    needs = "tensorflow and tf-keras" if option == "from_tf" else "flax"
    return Repair(f"Convert them to safetensors in an environment with transformers<5 and {needs}:", code)
