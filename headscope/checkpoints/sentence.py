"""The files that sentence-transformers adds to a checkpoint: `modules.json`, and the settings of its pooling."""

from pathlib import PurePosixPath
from typing import Any

from headscope.checkpoints.config_file import parse_list, parse_object
from headscope.checkpoints.weights import Storage
from headscope.errors import Malformed, NotFound
from headscope.facts.checkpoint import SentencePipeline

MODULES = "modules.json"
_SETTINGS = "config.json"
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
    classifier = _SETFIT_HEAD if _SETFIT_HEAD in names else ""
    try:
        modules = _modules(parse_list(storage.read_text(MODULES), MODULES))
    except (Malformed, NotFound) as err:
        return SentencePipeline((), reason=err.message, classifier=classifier)
    listed = tuple(name for name, _ in modules)
    folder = next((folder for name, folder in modules if name == "Pooling"), None)
    if folder is None:
        return SentencePipeline(listed, classifier=classifier)
    try:
        return SentencePipeline(listed, _modes(_settings(storage, folder)), classifier=classifier)
    except (Malformed, NotFound) as err:
        return SentencePipeline(listed, reason=err.message, classifier=classifier)


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
