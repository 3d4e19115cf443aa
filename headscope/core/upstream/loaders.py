"""Real loaders, by the names that `verify --with` takes. Each library is imported only when it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from headscope.errors import HeadscopeError, Unsupported, UsageError, did_you_mean

_TASK_CLASSES = {
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
}


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Load to make: a path or a Hub ID, the keywords of `from_pretrained`, and what its configuration says.

    `adapter` is a PEFT adapter to put on it, `adapter_config` its configuration (or that of the checkpoint itself).
    `num_labels` is the class count to load it with, where that isn't the configuration's, `model_class` the class
    to load it into, where that isn't the configuration's.
    """

    reference: str
    keywords: Mapping[str, Any]
    config: Mapping[str, Any]
    adapter: str | None = None
    adapter_config: Mapping[str, Any] | None = None
    sentence_class: str = ""
    num_labels: int | None = None
    model_class: Any = None


def load_with(loader: str, wanted: LoadRequest) -> Any:
    """Loads a model with a loader. Raises UsageError for an unknown one, Unsupported where the load fails."""
    load = _LOADERS.get(loader) or _import_function(loader)
    try:
        return load(wanted)
    except HeadscopeError:
        raise
    except ImportError as err:
        raise Unsupported(f"{loader} could not be imported: {err}", f"install {err.name or loader}") from err
    except Exception as err:
        raise Unsupported(
            f"{loader} could not load {wanted.reference}: {type(err).__name__}: {' '.join(str(err).split())}",
            "the load itself fails; `headscope inspect` shows what the checkpoint holds",
        ) from err


def check_loader(name: str) -> None:
    """Raises UsageError for a name that is neither one of the loaders nor a `module:function`; nothing is imported."""
    module, _, function = name.partition(":")
    if name not in _LOADERS and not (module and function):
        raise UsageError(f"no such loader: {name}", did_you_mean(name, _LOADERS, f"{_KNOWN}, MODULE:FUNCTION"))


def _import_function(name: str) -> Callable[[LoadRequest], Any]:
    """Imports the user's own loader, `module:function`, which is called with the path or Hub ID."""
    check_loader(name)
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as err:
        raise UsageError(f"the loader {name} cannot be imported: {err}", "name it as MODULE:FUNCTION") from err
    return lambda wanted: found(wanted.reference)


def _load_transformers(wanted: LoadRequest) -> Any:
    import transformers

    cls = wanted.model_class
    if not cls:
        # The class that the configuration names, or the one for sequence classification.
        named = wanted.config.get("architectures")
        name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
        found = getattr(transformers, name, None) if name and not wanted.config.get("auto_map") else None
        cls = found if hasattr(found, "from_pretrained") else transformers.AutoModelForSequenceClassification
    model = cls.from_pretrained(wanted.reference, **_count_keywords(wanted), **wanted.keywords)
    return _with_adapter(model, wanted)


def _count_keywords(wanted: LoadRequest) -> dict[str, int]:
    return {} if wanted.num_labels is None else {"num_labels": wanted.num_labels}


def _with_adapter(model: Any, wanted: LoadRequest) -> Any:
    if wanted.adapter is None:
        return model
    from peft import PeftModel

    return PeftModel.from_pretrained(model, wanted.adapter)


def _load_peft(wanted: LoadRequest) -> Any:
    import peft
    import transformers

    config = wanted.adapter_config
    if config is None:
        raise Unsupported(f"{wanted.reference} is not a PEFT adapter", "name the adapter, or add --adapter")
    kind = _TASK_CLASSES.get(str(config.get("task_type")), "AutoModelForSequenceClassification")
    adapted = kind.replace("AutoModel", "AutoPeftModel")
    trained = (config.get("auto_mapping") or {}).get("base_model_class", "")
    if not config.get("task_type") and hasattr(transformers, trained):
        kind, adapted = trained, "AutoPeftModel"
    if wanted.adapter is not None:
        base = getattr(transformers, kind).from_pretrained(
            wanted.reference, **_count_keywords(wanted), **wanted.keywords
        )
        return peft.PeftModel.from_pretrained(base, wanted.adapter)
    return getattr(peft, adapted).from_pretrained(wanted.reference, **_count_keywords(wanted))


def _load_sentence_transformers(wanted: LoadRequest) -> Any:
    name = wanted.sentence_class or "SentenceTransformer"
    counted = _count_keywords(wanted) if name == "CrossEncoder" else {}
    return getattr(importlib.import_module("sentence_transformers"), name)(wanted.reference, **counted)


def _load_trl(wanted: LoadRequest) -> Any:
    name = "AutoModelForCausalLMWithValueHead"
    trl = importlib.import_module("trl")
    with suppress(ModuleNotFoundError):  # it moved there, and later versions have no value heads
        trl = trl if hasattr(trl, name) else importlib.import_module("trl.experimental.ppo")
    if not hasattr(trl, name):
        raise Unsupported(
            f"the installed trl {version('trl')} has no {name} any more",
            "install a version that has it, or load the model with your own function: --with MODULE:FUNCTION",
        )
    return getattr(trl, name).from_pretrained(wanted.reference)


def _load_setfit(wanted: LoadRequest) -> Any:
    return importlib.import_module("setfit").SetFitModel.from_pretrained(wanted.reference).model_body


_LOADERS: dict[str, Callable[[LoadRequest], Any]] = {
    "transformers": _load_transformers,
    "peft": _load_peft,
    "sentence-transformers": _load_sentence_transformers,
    "trl": _load_trl,
    "setfit": _load_setfit,
}
_KNOWN = f"loaders: {', '.join(_LOADERS)}"
