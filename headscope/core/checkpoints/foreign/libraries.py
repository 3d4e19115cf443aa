"""Models of libraries whose heads headscope doesn't read: recognized by their files, and named with what loads them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from headscope.core.checkpoints.contents.weights import FileStorage
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.checkpoints.formats.torch_file import read_torch_value
from headscope.errors import HeadscopeError, Unsupported

_FLAIR_FILES = ("pytorch_model.bin", "final-model.pt", "best-model.pt")
_SPACY_FILES = ("meta.json", "config.cfg")


@dataclass(frozen=True, slots=True)
class _Library:
    """A library: what its models are called, and the code that loads one, with `{place}` for the folder or file."""

    name: str
    kind: str
    load: str
    """What to install and call."""
    is_written_by: Callable[[Collection[str], FileStorage], bool] = lambda names, storage: False
    """Whether files of some names are a model of this library."""
    model_type: str = ""
    """The `model_type` that it writes into config.json, which Transformers doesn't know; empty for none."""


def _is_pipeline_of_spacy(names: Collection[str], storage: FileStorage) -> bool:
    if not set(_SPACY_FILES) <= set(names):
        return False
    meta = parse_object(storage.read_text(_SPACY_FILES[0]), _SPACY_FILES[0])
    return "spacy_version" in meta or "pipeline" in meta


def _is_pickle_of_flair(names: Collection[str], storage: FileStorage) -> bool:
    """True if one of the usual files, or the only PyTorch file, holds tensors beside the name of a class of Flair."""
    # Without one of the usual names: of several files nothing tells which one is the model.
    others = [name for name in names if name.endswith((".pt", ".bin")) and "/" not in name]
    for name in [name for name in _FLAIR_FILES if name in names] or (others if len(others) == 1 else []):
        try:
            value, imports = read_torch_value(storage.open(name))  # read, never executed
        except HeadscopeError:
            continue  # unreadable, so nothing tells that it is Flair's
        is_state = isinstance(value, dict) and isinstance(value.get("state_dict"), dict)
        if is_state and ("__cls__" in value or any(found.startswith("flair.") for found in imports)):
            return True
    return False


def _has_file(name: str) -> Callable[[Collection[str], FileStorage], bool]:
    return lambda names, storage: name in names


_LIBRARIES = (
    _Library(
        "open_clip", "a zero-shot model of open_clip, which compares images with texts and has no matrix of classes",
        "pip install open_clip_torch; open_clip.create_model_and_transforms('local-dir:{place}')",
        _has_file("open_clip_config.json"),
    ),
    _Library("spaCy", "a pipeline of spaCy", "pip install spacy; spacy.load({place!r})", _is_pipeline_of_spacy),
    _Library(
        "Flair", "a model of Flair", "if you trust it (loading it runs pickled code): pip install flair; "
        "flair.nn.Classifier.load({place!r})", _is_pickle_of_flair,
    ),
    _Library(
        "GLiNER", "a model of GLiNER, whose labels are given with each text",
        "pip install gliner; GLiNER.from_pretrained({place!r})", _has_file("gliner_config.json"), "gliner",
    ),
    _Library(
        "GLiClass", "a model of GLiClass, whose labels are given with each text",
        "pip install gliclass; GLiClassModel.from_pretrained({place!r})", model_type="GLiClass",
    ),
    _Library(
        "SpanMarker", "a model of SpanMarker", "pip install span-marker; SpanMarkerModel.from_pretrained({place!r})",
        model_type="span-marker",
    ),
)  # fmt: skip


def refuse_library(names: Collection[str], storage: FileStorage, reference: str) -> None:
    """Raises Unsupported for files of a library in the table."""
    for library in _LIBRARIES:
        if library.is_written_by(names, storage):
            raise _not_of_transformers(library, reference)


def refuse_model_type(config: Mapping[str, Any], reference: str) -> None:
    """Raises Unsupported for the configuration of a library in the table."""
    for library in _LIBRARIES:
        if library.model_type and config.get("model_type") == library.model_type:
            raise _not_of_transformers(library, reference)


def _not_of_transformers(library: _Library, reference: str) -> Unsupported:
    return Unsupported(
        f"{reference} is {library.kind}: headscope reads heads of Transformers",
        f"load it with {library.name}: {library.load.format(place=reference)}",
    )
