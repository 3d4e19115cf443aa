"""The files that sentence-transformers adds to a checkpoint: `modules.json`, and the settings of its modules."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headscope.checkpoints.contents.sentence_modules import modes_of, read_module, settings_of_module, tokens_of_module
from headscope.checkpoints.contents.weights import FileStorage
from headscope.checkpoints.formats.bytes import FIRST_BYTES, ByteSource
from headscope.checkpoints.formats.config_file import parse_list, parse_object
from headscope.checkpoints.formats.pickle.scikit_pickle import read_pickled_head
from headscope.errors import Malformed, NotFound, Unsupported
from headscope.facts.stored.sentence import PickledHead, SentenceModule, SentencePipeline

MODULES = "modules.json"
_LIBRARY = "config_sentence_transformers.json"
_LENGTHS = (
    ("sentence_bert_config.json", "max_seq_length"),
    ("tokenizer_config.json", "model_max_length"),
)
"""Where the library finds the length at which it cuts texts: the first wins."""
_SAME_SIZE = {"Normalize", "Dropout"}
_SETFIT = "config_setfit.json"
_SETFIT_HEAD = "model_head.pkl"
_MOST_MODULES = 50
_LONGEST = 10**9
_ENCODERS = ("sentence_transformers", "sbert_ce_default_activation_function")
"""Settings in `config.json` that a CrossEncoder leaves there, of before sentence-transformers 6 and 4."""


def read_sentence_pipeline(storage: FileStorage, config: Mapping[str, Any] | None = None) -> SentencePipeline | None:
    """What follows the model of a sentence-transformers checkpoint; None if no file and no `config` mentions any.

    `reason` explains a missing file: it is beside the weights, and stops nothing.
    """
    if not storage.has(MODULES):
        return _of_config(config or {})
    names = set(storage.names())
    files = _Once(storage)
    found = SentencePipeline((), classifier=_SETFIT_HEAD if _SETFIT_HEAD in names else "", head=_head(files, names))
    try:
        modules = _modules(parse_list(files.read_text(MODULES), MODULES))
        found = replace(found, modules=tuple(name for name, _ in modules))
        folders = dict(reversed(modules))
        found = replace(found, parts=_linked(tuple(read_module(files, *module) for module in modules)))
        if _LIBRARY in names:
            found = _with_library(found, parse_object(files.read_text(_LIBRARY), _LIBRARY))
        if "LogitScore" in folders:
            found = replace(found, token_ids=tokens_of_module(settings_of_module(files, folders["LogitScore"])))
        found = replace(found, max_length=_max_length(files, names))
        if "Pooling" in folders:
            found = replace(found, pooling=modes_of(settings_of_module(files, folders["Pooling"])))
    except (Malformed, NotFound) as err:
        return replace(found, reason=err.message)
    return found


def _head(files: FileStorage, names: set[str]) -> PickledHead | None:
    """The classifier of SetFit, with the labels that `config_setfit.json` gives its classes."""
    if _SETFIT_HEAD not in names:
        return None
    try:
        head = read_pickled_head(files.open(_SETFIT_HEAD))
        settings = parse_object(files.read_text(_SETFIT), _SETFIT) if _SETFIT in names else {}
    except (Malformed, NotFound, Unsupported) as err:
        return PickledHead("", reason=err.message)
    labels = settings.get("labels")
    named = isinstance(labels, list) and labels and all(isinstance(item, str) for item in labels)
    return replace(head, labels=tuple(labels)) if named and isinstance(labels, list) else head


class _Once:
    """A storage whose small files are read once."""

    def __init__(self, storage: FileStorage) -> None:
        self._storage = storage
        self._texts: dict[str, bytes] = {}

    def names(self) -> tuple[str, ...]:
        """See `Storage`."""
        return self._storage.names()

    def names_at_hand(self) -> tuple[str, ...] | None:
        """See `Storage`."""
        return self._storage.names_at_hand()

    def has(self, name: str) -> bool:
        """See `Storage`."""
        return self._storage.has(name)

    def read_text(self, name: str) -> bytes:
        """See `Storage`."""
        if name not in self._texts:
            self._texts[name] = self._storage.read_text(name)
        return self._texts[name]

    def open(self, name: str, first: int = FIRST_BYTES) -> ByteSource:
        """See `Storage`."""
        return self._storage.open(name, first)


def _of_config(config: Mapping[str, Any]) -> SentencePipeline | None:
    """A CrossEncoder of an older sentence-transformers, which leaves only its activation in `config.json`."""
    if not any(config.get(name) is not None for name in _ENCODERS):
        return None
    settings, older = (config.get(name) for name in _ENCODERS)
    activation = settings.get("activation_fn") if isinstance(settings, dict) else older
    named = activation if isinstance(activation, str) else ""
    return SentencePipeline((), library_class="CrossEncoder", activation=named.rpartition(".")[2])


def _linked(parts: tuple[SentenceModule, ...]) -> tuple[SentenceModule, ...]:
    """The modules, with a fault where one does not take what the one before gives."""
    found = list(parts)
    for at, part in enumerate(parts):
        given = next((item.output_size for item in reversed(parts[:at]) if item.name not in _SAME_SIZE), None)
        is_vector = part.name in {"Dense", "LayerNorm"} and not part.fault
        if is_vector and given is not None and part.input_size is not None and given != part.input_size:
            fault = f"it takes vectors of {part.input_size:,}, and the module before gives {given:,}"
            found[at] = replace(part, fault=fault)
    return tuple(found)


def _with_library(found: SentencePipeline, settings: dict[str, Any]) -> SentencePipeline:
    """What `config_sentence_transformers.json` says: the class that saved the checkpoint, and its activation."""
    name, activation = settings.get("model_type", ""), settings.get("activation_fn")
    if not isinstance(name, str) or not isinstance(activation, str | None):
        raise Malformed(f"model_type or activation_fn in {_LIBRARY} is not a name", f"correct {_LIBRARY}")
    return replace(found, library_class=name, activation=(activation or "").rpartition(".")[2])


def _max_length(storage: FileStorage, names: set[str]) -> int | None:
    """The number of tokens at which texts are cut; None where no file says."""
    for file, key in _LENGTHS:
        value = parse_object(storage.read_text(file), file).get(key) if file in names else None
        if type(value) is int and 0 < value < _LONGEST:
            return value
    return None


def _modules(entries: list[Any]) -> list[tuple[str, str]]:
    """Class name and folder of each module."""
    found = [_module(entry) for entry in entries[:_MOST_MODULES]]
    if not found or len(entries) > _MOST_MODULES:
        raise Malformed(f"{MODULES} lists {len(entries)} modules", f"correct {MODULES}")
    return found


def _module(entry: Any) -> tuple[str, str]:
    kind, folder = (entry.get("type"), entry.get("path", "")) if isinstance(entry, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(folder, str):
        raise Malformed(f"{MODULES} holds an entry without the type and the path of a module", f"correct {MODULES}")
    return kind.rpartition(".")[2], folder
