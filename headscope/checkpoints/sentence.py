"""The files that sentence-transformers adds to a checkpoint: `modules.json`, and the settings of its pooling."""

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from headscope.checkpoints.config_file import parse_list, parse_object
from headscope.checkpoints.weights import Storage
from headscope.errors import Malformed, NotFound
from headscope.facts.sentence import SentencePipeline

MODULES = "modules.json"
_SETTINGS = "config.json"
_LIBRARY = "config_sentence_transformers.json"
_SETFIT_HEAD = "model_head.pkl"
_MOST_MODULES = 50
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Settings of before sentence-transformers 6, in the order in which it concatenates what they pool."""


def read_sentence_pipeline(storage: Storage) -> SentencePipeline | None:
    """What follows the base model of a sentence-transformers checkpoint; None where there is no `modules.json`.

    What is no such file is told by `reason`: it is beside the weights, and stops nothing.
    """
    names = set(storage.names())
    if MODULES not in names:
        return None
    found = SentencePipeline((), classifier=_SETFIT_HEAD if _SETFIT_HEAD in names else "")
    try:
        modules = _modules(parse_list(storage.read_text(MODULES), MODULES))
        found = replace(found, modules=tuple(name for name, _ in modules))
        folders = dict(reversed(modules))
        if _LIBRARY in names:
            found = _with_library(found, parse_object(storage.read_text(_LIBRARY), _LIBRARY))
        if "LogitScore" in folders:
            found = replace(found, token_ids=_token_ids(_settings(storage, folders["LogitScore"])))
        if "Pooling" in folders:
            found = replace(found, pooling=_modes(_settings(storage, folders["Pooling"])))
    except (Malformed, NotFound) as err:
        return replace(found, reason=err.message)
    return found


def _with_library(found: SentencePipeline, settings: dict[str, Any]) -> SentencePipeline:
    """What `config_sentence_transformers.json` says: the class that saved the checkpoint, and its activation."""
    name, activation = settings.get("model_type", ""), settings.get("activation_fn")
    if not isinstance(name, str) or not isinstance(activation, str | None):
        raise Malformed(f"model_type or activation_fn in {_LIBRARY} is not a name", f"correct {_LIBRARY}")
    return replace(found, library_class=name, activation=(activation or "").rpartition(".")[2])


def _token_ids(settings: dict[str, Any]) -> tuple[int, ...]:
    """The tokens of a `LogitScore`: for no, where it has one, then for yes."""
    wanted, other = settings.get("true_token_id"), settings.get("false_token_id")
    if type(wanted) is not int or not (other is None or type(other) is int) or min(wanted, other or 0) < 0:
        raise Malformed("LogitScore names no token ids (true_token_id, false_token_id)", "correct its config.json")
    return (wanted,) if other is None else (other, wanted)


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


def _settings(storage: Storage, folder: str) -> dict[str, Any]:
    if any(sign in folder for sign in "\\:\0") or PurePosixPath(folder).is_absolute() or ".." in folder.split("/"):
        raise Malformed(f"{MODULES} names the folder {folder[:80]!r}, which is not inside the checkpoint", "")
    name = str(PurePosixPath(folder) / _SETTINGS)
    return parse_object(storage.read_text(name), name)


def _modes(settings: dict[str, Any]) -> tuple[str, ...]:
    """The pooling modes, as sentence-transformers reads its settings of every age."""
    named = settings.get("pooling_mode")
    if named is not None:
        modes = (named,) if isinstance(named, str) else tuple(named) if isinstance(named, list) else ()
        if not modes or not all(isinstance(mode, str) for mode in modes):
            raise Malformed("pooling_mode of the pooling module is no name", "correct its config.json")
        return modes
    return tuple(mode for key, mode in _OLD_MODES.items() if settings.get(key) is True) or ("mean",)
