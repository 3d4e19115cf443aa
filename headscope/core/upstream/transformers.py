"""Transformers: its loader and what that leaves behind, its tables of classes, its code from repositories."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import get_ident
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from headscope.core.upstream.sources import EXTRA_FILES
from headscope.errors import moved

_PACKAGE = "transformers"
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LoadingInfo:
    """Gaps that `from_pretrained(..., output_loading_info=True)` reports.

    `mismatched` are the name, the shape in the checkpoint and the shape in the model.
    """

    missing: frozenset[str]
    unexpected: tuple[str, ...]
    mismatched: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]


def word_table(model: Any) -> nn.Embedding | None:
    """Gives the word embeddings of a model; None for one of images or sounds, which names none or another layer."""
    try:
        table = model.get_input_embeddings()
    except Exception:  # NotImplementedError in Transformers, and whatever a class of somebody raises
        return None
    return table if isinstance(table, nn.Embedding) else None


def text_config_of(config: Any) -> Any:
    """Gives the part of a configuration that describes the text model, or the whole if there is none or several.

    In families without such a part Transformers returns whatever is under `text_config`, even a list or a text.
    """
    try:
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
    except ValueError:  # it finds several, such as `text_config` and `text_encoder`, and names none
        return config
    return text if hasattr(text, "to_dict") else config


def read_loading_info(info: Any) -> LoadingInfo:
    """Reads the loader's own result. Raises KeyError, TypeError or ValueError for anything else."""
    return LoadingInfo(
        missing=frozenset(info["missing_keys"]),
        unexpected=tuple(sorted(info["unexpected_keys"])),
        mismatched=tuple((str(name), tuple(found), tuple(wanted)) for name, found, wanted in info["mismatched_keys"]),
    )


def load_on_meta(
    cls: type[PreTrainedModel], config: Any, state_dict: dict[str, torch.Tensor]
) -> tuple[PreTrainedModel, LoadingInfo]:
    """Loads a model of `cls` on the meta device, with Transformers' own loader, from a state dict.

    `from_pretrained(None, config=..., state_dict=...)` is how the Trainer and the tests of Transformers call it, and
    not documented. Raises whatever the loader raises.
    """
    # `device_map="meta"`, or the loader allocates the model. `ignore_mismatched_sizes`, or it raises at the first shape
    # that differs and says nothing of the others. The Auto classes refuse None as the path, so `cls` is a concrete
    # class.
    with _without_extra_files(config):
        loaded: Any = cls.from_pretrained(
            None,
            config=config,
            state_dict=state_dict,
            device_map="meta",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    try:
        model, info = loaded
        return model, read_loading_info(info)
    except (KeyError, TypeError, ValueError) as err:
        raise moved(_PACKAGE, f"what output_loading_info gives ({type(err).__name__}: {err})") from err


def _without_extra_files(config: Any) -> AbstractContextManager[Any]:
    """Keeps the loader from looking for files beside the state dict: without a path, it asks the Hub for them."""
    has_some = bool(getattr(type(config), "extra_files", ()))
    return patch.object(type(config), "extra_files", ()) if has_some else nullcontext()


def is_filled(parameter: torch.Tensor) -> bool:
    """True if the loader filled a parameter.

    It sets a mark on each (`core_model_loading.set_param_for_module`), which a deep copy loses.
    """
    return bool(getattr(parameter, "_is_hf_initialized", False))


def initialize(model: PreTrainedModel, part: nn.Module) -> None:
    """Initializes a module without marks as the loader initializes one of `model` that the checkpoint does not fill.

    Every class has `_init_weights`, which is private. Raises whatever it raises.
    """
    model._init_weights(part)  # type: ignore[no-untyped-call]  # upstream has no annotations


def was_loaded(module: nn.Module) -> bool:
    """True if `from_pretrained` made a model: its conversions are left on it, or its marks on the parameters."""
    return hasattr(module, "_weight_conversions") or any(map(is_filled, module.parameters()))


def name_and_commit(config: Any) -> tuple[str | None, str | None]:
    """Gives the checkpoint that `from_pretrained` noted in a configuration, and its commit."""
    return getattr(config, "_name_or_path", None), getattr(config, "_commit_hash", None)


def tied_names(model: PreTrainedModel) -> Mapping[str, str]:
    """Maps the parameters that a model declares as tied to what they are tied to.

    Raises Unsupported if Transformers has moved it.
    """
    try:
        found: Mapping[str, str] = model.all_tied_weights_keys or {}
    except AttributeError as err:
        raise moved(_PACKAGE, "models have no all_tied_weights_keys") from err
    return found


def decayed_names(model: nn.Module) -> frozenset[str]:
    """Gives the parameters that `Trainer` applies weight decay to: all but biases and those of normalizations."""
    from transformers import Trainer

    trainer: Any = Trainer  # the method reads nothing of its instance
    return frozenset(trainer.get_decay_parameter_names(None, model))


def classes_by_type(name: str) -> Mapping[str, tuple[str, ...]]:
    """Maps model type to class names, by the table of an auto class (`AutoModelForMaskedLM`).

    Raises Unsupported if Transformers has moved it.
    """
    try:
        return auto_tables()[name]
    except KeyError as err:
        raise moved(_PACKAGE, f"the auto classes have no {name}") from err


def _of_auto_classes(module: str, name: str) -> Any:
    """Gives a name in a module of the auto classes. Raises Unsupported if Transformers has moved it."""
    try:
        return getattr(import_module(f"transformers.models.auto.{module}"), name)
    except (ImportError, AttributeError) as err:
        raise moved(_PACKAGE, f"the auto classes have no {name}") from err


@cache
def auto_tables() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Gives the table of every auto class (`AutoModelForMaskedLM`): model type to class names.

    Raises Unsupported if Transformers has moved it.
    """
    from transformers.models.auto import modeling_auto

    tables = {
        name: getattr(getattr(cls, "_model_mapping", None), "_model_mapping", None)
        for name, cls in vars(modeling_auto).items()
        if name.startswith("Auto") and isinstance(cls, type)
    }
    found = {
        name: {str(kind): _as_tuple(names) for kind, names in table.items()} for name, table in tables.items() if table
    }
    if "AutoModel" not in found:
        raise moved(_PACKAGE, "the auto classes have no _model_mapping")
    return MappingProxyType(found)


def _as_tuple(names: str | Iterable[str | None] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(name for name in names or () if name)


@cache
def tokenizer_of_type() -> Mapping[str, tuple[str, ...]]:
    """Maps model type to the names of its tokenizer classes. Raises Unsupported if Transformers has moved it."""
    table = _of_auto_classes("tokenization_auto", "TOKENIZER_MAPPING_NAMES")
    return MappingProxyType({str(kind): _as_tuple(names) for kind, names in table.items()})


def folder_of_type(model_type: str) -> str:
    """Gives the folder of a model type below `transformers/models`. Raises Unsupported if Transformers has moved it."""
    return str(_of_auto_classes("configuration_auto", "model_type_to_module_name")(model_type))


def class_names_in_source() -> frozenset[str]:
    """Gives the names of the classes in the modeling files and in what they share, and of PyTorch's modules.

    The files are read as text: importing them takes minutes.
    """
    package = Path(transformers.__file__).parent
    files = (*package.glob("models/*/modeling_*.py"), *package.glob("*.py"))
    found = (name for file in files for name in _CLASS.findall(file.read_text(encoding="utf-8")))
    return frozenset((*found, *nn.modules.__all__))


@contextmanager
def attention_of_kind(model: PreTrainedModel, kind: str) -> Iterator[bool]:
    """Gives a model another implementation of attention inside, and tells whether it is another one.

    Raises what Transformers raises for one that a class doesn't have: ValueError or ImportError.
    """
    before: str = model.config._attn_implementation
    try:
        if before != kind:
            model.set_attn_implementation(kind)
        yield before != kind
    finally:
        model.set_attn_implementation(before)


def config_classes() -> Mapping[str, Any]:
    """Maps model type to configuration class, each imported when it is needed.

    Raises Unsupported if Transformers has moved it.
    """
    found: Mapping[str, Any] = _of_auto_classes("configuration_auto", "CONFIG_MAPPING")
    return found


def extra_files_of(model_type: str, class_name: str | None = None) -> tuple[str, ...]:
    """Gives the extra files of the class that `model_type` stands for, or of a named class.

    They are the class's, and no `config.json` changes them. Names that lead to another folder are left out.
    """
    own = getattr(getattr(transformers, class_name, None), "config_class", None) if class_name else None
    known = config_classes()  # its `get` doesn't import what it gives
    config_class = own or (known[model_type] if model_type in known else None)  # noqa: SIM401
    names = getattr(config_class, EXTRA_FILES, ())
    return tuple(name for name in names if name and not any(sign in name for sign in "/\\:\0"))


def class_of_repository(reference: str, place: str, **options: Any) -> Any:
    """Imports the class that a repository's own code defines (`modeling_x.Class`). Runs that code.

    Raises Unsupported if Transformers has moved it.
    """
    try:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module
    except ImportError as err:
        raise moved(_PACKAGE, "there is no get_class_from_dynamic_module") from err
    return get_class_from_dynamic_module(reference, place, **options)


@contextmanager
def watching(field: str) -> Iterator[list[str]]:
    """Gives a list that gains an entry each time this thread reads `field` of a configuration of Transformers.

    The reads are seen in the class: a loss function that is handed the configuration reads it outside the model.
    """
    # On the class, because Python looks `__getattribute__` up nowhere else; and code may read a copy of the
    # configuration.
    reads: list[str] = []
    thread = get_ident()
    plain = PreTrainedConfig.__getattribute__

    def noticed(config: PreTrainedConfig, name: str) -> Any:
        if name == field and get_ident() == thread:
            reads.append(name)
        return plain(config, name)  # type: ignore[no-untyped-call]  # upstream has no annotations

    PreTrainedConfig.__getattribute__ = noticed  # type: ignore[method-assign]  # put back below
    try:
        yield reads
    finally:
        PreTrainedConfig.__getattribute__ = plain  # type: ignore[method-assign]


def load_for_real(
    cls: type[PreTrainedModel], config: Any, state_dict: dict[str, torch.Tensor], dtype: torch.dtype
) -> PreTrainedModel:
    """Loads a model of `cls` into memory, with Transformers' own loader, from a few tensors.

    The rest of it is initialized at random; the random state is left as it was. Raises whatever the loader raises.
    """
    with torch.random.fork_rng(devices=[]), _without_extra_files(config):
        model: Any = cls.from_pretrained(
            None, config=config, state_dict=state_dict, dtype=dtype, ignore_mismatched_sizes=True
        )
    loaded: PreTrainedModel = model
    return loaded


def model_of_named_class(name: str, config: Any) -> Any:
    """Makes a model of a class of Transformers, or of an auto class, with fresh weights. Raises what it raises."""
    cls = getattr(transformers, name)
    return cls.from_config(config) if name.startswith("AutoModel") else cls(config)
