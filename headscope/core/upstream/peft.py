"""PEFT: its load of an adapter, and the names that it gives to what it wraps, adds and saves.

It is imported only to load the headers of an adapter, and to compute again what a model that holds one has computed.
"""

import json
import math
import re
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headscope.errors import Unsupported

PREFIXES = ("base_model.model.", "base_model.", "")
"""What may precede a parameter's name in an adapter's file."""
PREFIXES_OF_TUNERS = ("base_model.model.",)
"""What is there for the methods that wrap single layers (LoRA, IA3)."""
SAVED_FOR_TASK = {
    "SEQ_CLS": ("classifier", "score"),
    "TOKEN_CLS": ("classifier", "score"),
    "QUESTION_ANS": ("qa_outputs",),
}
"""What PEFT adds to `modules_to_save` for a task; source: peft/peft_model.py."""
WRAPPED = ("base_layer", "original_module", "modules_to_save")
"""The children of PEFT's wrappers that hold what was wrapped."""
SUFFIXES = {
    "LORA": r"lora_[AB]\.weight|lora_B\.bias|lora_embedding_[AB]|lora_magnitude_vector(?:\.weight)?",
    "IA3": r"ia3_l",
}
"""The tensors that a method adds to a layer, as the file names them."""
ADAPTER_NAME = re.compile(r"(lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector|ia3_l)\.default(?=\.|$)")
"""Keys may have the name of the adapter in them too: `from_pretrained` calls it `default`."""
_OF_PEFT = r"base_layer|original_module|modules_to_save\.[^.]+|ln_tuning_layers\.[^.]+|token_adapter"
_OF_TORCH = r"_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module"
_WRAPPING = re.compile(rf"\.({_OF_PEFT}|{_OF_TORCH})(?=\.)")


def plain_name(name: str) -> str:
    """Turns `classifier.modules_to_save.default.weight` into `classifier.weight`; drops PyTorch's wrappers too."""
    return _WRAPPING.sub("", f".{name}").removeprefix(".")


def begins_as_zero(name: str) -> bool:
    """True if PEFT begins with a tensor of zeros, so that the adapter changes nothing before its training."""
    return not {"lora_B", "lora_embedding_A"}.isdisjoint(name.split("."))


_OF_ADAPTER = re.compile(r"\.modules_to_save\.[^.]+(?=\.)|(?<=[AB])\.[^.]+(?=\.weight$|\.bias$|$)|(?<=ia3_l)\.[^.]+$")
PROMPTS = "prompt_encoder"
"""The child of a PeftModel that makes virtual tokens."""
_SHARED = "base_model"
"""What is before the tensors that all layers share (VeRA), instead of a path."""
_PROMPT = re.compile(r"prompt_encoder\.[^.]+\.embedding\.weight")
_PROMPT_KEY = "prompt_embeddings"


@dataclass(frozen=True, slots=True)
class HeldAdapters:
    """Adapters that a model in memory holds in PEFT's layers.

    `merged` are the paths of the layers whose weights hold the change already; `scales` are the factors of the active
    adapters by the paths of their layers. `replaced` begin the names of modules that are kept and not run, because a
    trained copy is.
    """

    names: frozenset[str] = frozenset()
    active: frozenset[str] = frozenset()
    is_disabled: bool = False
    merged: frozenset[str] = frozenset()
    scales: Mapping[str, float] = field(default_factory=dict)
    replaced: frozenset[str] = frozenset()

    def is_of_inactive(self, name: str) -> bool:
        """True if a tensor belongs to an adapter that the model does not use."""
        return not (self.names - self.active).isdisjoint(name.split(".")) and self.active.isdisjoint(name.split("."))


def held_adapters(module: Any) -> HeldAdapters:
    """Finds the adapters in the layers of a module; PEFT is not imported."""
    layers = [(path, part) for path, part in module.named_modules() if _is_layer(part)]
    active = frozenset(name for _, part in layers for name in part.active_adapters)
    factors = [(path, getattr(part, "scaling", None)) for path, part in layers]
    finders = [getattr(part, "_get_available_adapters", None) for _, part in layers]
    return HeldAdapters(
        names=active.union(*(names() for names in finders if callable(names))),
        active=active,
        is_disabled=any(part.disable_adapters for _, part in layers),
        merged=frozenset(path for path, part in layers if getattr(part, "merged", False) is True),
        scales={
            path: float(found[name])
            for path, found in factors
            if isinstance(found, dict)
            for name in active & set(found)
        },
        replaced=frozenset(f"{path}.original_module." for path, part in module.named_modules() if _runs_copy(part)),
    )


def _runs_copy(part: Any) -> bool:
    """True if a module of PEFT runs its copy of the module that it wraps."""
    is_wrapper = type(part).__module__.split(".")[0] == "peft" and hasattr(part, "original_module")
    active = set(part.active_adapters) & set(getattr(part, "modules_to_save", ())) if is_wrapper else set()
    return bool(active) and not part.disable_adapters


def _is_layer(part: Any) -> bool:
    is_of_peft = type(part).__module__.split(".")[0] == "peft"
    return is_of_peft and hasattr(part, "active_adapters") and isinstance(getattr(part, "disable_adapters", None), bool)


def layer_of(module: Any, name: str) -> str:
    """Finds the path of PEFT's layer that a tensor belongs to, as its base layer or beside it; "" for none."""
    parts = name.split(".")
    paths = [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]
    modules = dict(module.named_modules())
    return next((path for path in paths if path in modules and _is_layer(modules[path])), "")


def merged_layer(layer: Any) -> Any:
    """Gives the layer inside one of PEFT's after the merge of its active adapters, as PEFT merges; a copy.

    Raises whatever PEFT raises for a layer that it can't merge.
    """
    copied = deepcopy(layer)
    if not copied.merged:
        copied.merge(adapter_names=list(copied.active_adapters))
    return copied.get_base_layer()


REWRITING = ("olora", "pissa")
"""How the initializations begin with which PEFT takes the first change out of the base weight, at a load too."""


def rewritten_weight(layer: Any, weight: Any, how: str) -> Any:
    """Gives the base weight that PEFT leaves in a layer of LoRA whose initialization takes its change out of it.

    `weight` is that of the base model, `how` the setting `init_lora_weights`. PEFT does it, in a copy. Raises whatever
    PEFT raises.
    """
    copied = deepcopy(layer)
    base = copied.get_base_layer()
    base.weight.data = weight.to(base.weight.dtype)
    (name,) = copied.active_adapters
    if how.startswith("olora"):
        copied.olora_init(name)
    else:
        copied.pissa_init(name, how)
    return base.weight.detach()


_ONLY_AT_A_START = frozenset(
    {"inference_mode", "base_model_name_or_path", "revision", "auto_mapping", "peft_version", "init_lora_weights"}
    | {"lora_dropout", "runtime_config", "loftq_config", "eva_config", "corda_config", "lora_ga_config"}
)
"""Settings that a save fills in, or that only training reads: the scores don't depend on them."""


def settings_of(module: Any, adapter: str) -> dict[str, Any]:
    """Gives the live settings of an adapter on which its scores depend, as its file would hold them; {} for none."""
    holder = _module_with_settings(module, adapter)
    given = holder.peft_config[adapter].to_dict() if holder is not None else {}
    plain = json.loads(json.dumps(given, default=lambda item: sorted(item) if isinstance(item, set) else str(item)))
    return {name: value for name, value in plain.items() if name not in _ONLY_AT_A_START}


def in_any_order(value: Any) -> Any:
    """Sorts a setting for comparison: PEFT keeps names of modules and numbers of layers as sets."""
    return sorted(value, key=str) if isinstance(value, list) else value


def state_of_adapter(module: Any, adapter: str, *, embeddings: bool = False) -> dict[str, Any]:
    """Gives the tensors of a live adapter under its file's keys, as PEFT saves them; {} for a module without it.

    With `embeddings`, the word embeddings among them. Raises Unsupported where PEFT can't tell.
    """
    holder = _module_with_settings(module, adapter)
    if holder is None:
        return {}
    from peft import get_peft_model_state_dict

    try:
        return dict(get_peft_model_state_dict(holder, adapter_name=adapter, save_embedding_layers=embeddings))
    except Exception as err:  # whatever a method of PEFT raises
        raise Unsupported(f"PEFT can't tell what it saves ({type(err).__name__})", "") from err


def _module_with_settings(module: Any, adapter: str) -> Any:
    return next((part for part in module.modules() if adapter in (getattr(part, "peft_config", None) or ())), None)


def key_in_adapter(name: str, keys: Container[str], adapters: frozenset[str] = frozenset()) -> str | None:
    """Gives the key under which an adapter's file holds a tensor of a wrapped model; None where it holds none.

    `bert.query.lora_A.default.weight` -> `base_model.model.bert.query.lora_A.weight`. A model without wrappers has no
    other name for a module that the adapter saved whole: then the name itself is tried. `adapters` are the names that
    the model gives its adapters: PEFT leaves them out of the file, and DoRA's `weight` behind them too.
    """
    if _PROMPT.fullmatch(name):
        return _PROMPT_KEY if _PROMPT_KEY in keys else None
    parts = name.split(".")
    without = [[*parts[:at], *parts[at + 1 :]] for at, part in enumerate(parts) if part in adapters]
    without += [each[:-1] for each in without if each[-1] == "weight" and each[-2].startswith("lora_magnitude")]
    for prefix in PREFIXES:
        for plain in (_OF_ADAPTER.sub("", name), name, *(".".join(each) for each in without)):
            if f"{prefix}{plain}" in keys:
                return f"{prefix}{plain}"
    shared = (f"{_SHARED}.{each[-1]}" for each in without)
    return next((key for key in shared if key in keys), None)


def rows_of_tokens(module: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Maps the copies that PEFT keeps of the rows which it trains to the embeddings' name and the rows."""
    return {
        f"{path}.trainable_tokens_original.{adapter}": (plain_name(f"{path}.weight"), tuple(map(int, rows)))
        for path, part in module.named_modules()
        if hasattr(part, "trainable_tokens_original") and isinstance(getattr(part, "token_indices", None), dict)
        for adapter, rows in part.token_indices.items()
    }


def add_adapters(fresh: Any, module: Any, names: Iterable[str]) -> None:
    """Puts adapters on a fresh model as they are on `module`, from the settings that it keeps; no weights."""
    for name in names:
        settings = getattr(module, "peft_config", {}).get(name)
        if settings is not None:
            from peft import inject_adapter_in_model

            inject_adapter_in_model(deepcopy(settings), fresh, adapter_name=name)


_NAME = "default"
"""What `from_pretrained` calls an adapter."""
_PATTERNS = ("target_modules", "exclude_modules", "feedforward_modules", "target_parameters", "layers_pattern")
_TABLES = ("rank_pattern", "alpha_pattern")
_LONGEST = 500
_REPEATS = 3
_IMPORTING = ("megatron_config",)
_SHARED_AT_LOAD = ("vblora_vector_bank", PROMPTS, ".tinylora_v.", ".unilora_theta_d.")
"""Parts of a layer that are references to one tensor of the model: PEFT doesn't count them as missing."""


@dataclass(frozen=True, slots=True)
class AdapterLoad:
    """Result of PEFT's load of the tensors of an adapter.

    `state` are the tensors of the model with the adapter, by their names there; `missing` those that the file doesn't
    fill; `expected` the shapes of the keys that PEFT would save; `scalings` the factors that are zero or not finite.
    `refusal` is what PEFT raised, by the class of the error and its text; `unknown` why PEFT could not be run.
    """

    state: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    expected: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    scalings: tuple[tuple[str, float], ...] = ()
    refusal: tuple[str, str] | None = None
    unknown: str = ""


def load_adapter(model: Any, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> AdapterLoad:
    """Runs the loading of `PeftModel.from_pretrained` on `model`, which is changed, with tensors on the meta device."""
    reason = why_peft_not_run(config)
    if reason:
        return AdapterLoad(unknown=reason)
    try:
        from peft import set_peft_model_state_dict
    except ImportError:
        return AdapterLoad(unknown="PEFT is not installed (pip install peft)")
    expected: dict[str, tuple[int, ...]] = {}
    try:
        wrapped = wrapped_empty(model, config)
        with suppress(Unsupported):  # PEFT can't always say without values what it would save
            expected = {key: tuple(tensor.shape) for key, tensor in state_of_adapter(wrapped, _NAME).items()}
        result: Any = set_peft_model_state_dict(wrapped, dict(tensors), _NAME)
    except Exception as err:
        text = " ".join(str(err).split())[:300]
        if isinstance(err, ImportError | OSError) or "meta" in text.lower():  # an operation without a meta kernel
            return AdapterLoad(unknown=f"PEFT could not load it without values: {type(err).__name__}: {text}")
        return AdapterLoad(expected=expected, refusal=(type(err).__name__, text))
    state = dict(wrapped.named_parameters(remove_duplicate=False)) | dict(wrapped.named_buffers(remove_duplicate=False))
    missing = tuple(_missing_parameters(wrapped, result.missing_keys))
    return AdapterLoad(state, missing, expected, tuple(_idle_factors(wrapped)))


def wrapped_empty(model: Any, config: Mapping[str, Any]) -> Any:
    """Puts an empty adapter on the model, as `PeftModel.from_pretrained` does before it reads the weights."""
    from peft import MODEL_TYPE_TO_PEFT_MODEL_MAPPING, PeftModel

    settings = settings_in(config)
    return MODEL_TYPE_TO_PEFT_MODEL_MAPPING.get(settings.task_type, PeftModel)(model, settings, _NAME)


def settings_in(config: Mapping[str, Any]) -> Any:
    """Reads the settings of an adapter as PEFT does, for inference."""
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING, PeftConfig

    with TemporaryDirectory() as folder:
        (Path(folder) / "adapter_config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
        kind = PEFT_TYPE_TO_CONFIG_MAPPING[PeftConfig._get_peft_type(folder)]
        settings = kind.from_pretrained(folder)
    settings.inference_mode = True
    return settings


_OWN_CLASSES = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "FEATURE_EXTRACTION": "AutoModel",
}
"""The classes of Transformers for PEFT's tasks that score no classes; source: peft/auto.py."""


def own_class_of(config: Mapping[str, Any]) -> str:
    """Gives the class of the model that an adapter was made for, where its task or its name say one; "" otherwise.

    Without a task, PEFT writes the name of the class.
    """
    task, written = config.get("task_type"), config.get("auto_mapping")
    if task is None and isinstance(written, Mapping):
        return str(written.get("base_model_class") or "")
    return _OWN_CLASSES.get(task, "") if isinstance(task, str) else ""


def virtual_tokens_in(config: Mapping[str, Any]) -> int:
    """Counts the virtual tokens that an adapter of a configuration puts before each text; 0 for none."""
    try:
        settings = settings_in(config)
        stated = settings.num_virtual_tokens if settings.is_prompt_learning else 0
    except Exception:  # without PEFT, or with settings that it refuses, the file says it
        stated = config.get("num_virtual_tokens")
    return stated if isinstance(stated, int) else 0


def model_with_adapter(model: Any, folder: Path, config: Mapping[str, Any]) -> Any:
    """Loads an adapter with PEFT onto a model with its weights, not merged.

    Raises Unsupported where PEFT isn't run, isn't installed, or raises.
    """
    reason = why_peft_not_run(config)
    if reason:
        raise Unsupported(f"PEFT is not run with this adapter: {reason}", "")
    try:
        from peft import PeftConfig, PeftModel

        if not hasattr(model, "prepare_inputs_for_generation"):  # what PEFT looks for in a language model
            own = PeftConfig.from_pretrained(str(folder), local_files_only=True)
            own.task_type = None if own.task_type in GENERATING else own.task_type
            return PeftModel.from_pretrained(model, str(folder), config=own, local_files_only=True).eval()
        return PeftModel.from_pretrained(model, str(folder), local_files_only=True).eval()
    except ImportError as err:
        raise Unsupported(f"PEFT can't load the adapter: {err}", "pip install peft") from err
    except Exception as err:  # whatever a method of PEFT raises
        raise Unsupported(f"PEFT can't load the adapter: {type(err).__name__}: {err}", "") from err


def check_filled(wrapped: Any, keys: Iterable[str]) -> None:
    """Compares the keys of an adapter's file with the tensors of the model that PEFT made of it.

    Word embeddings may be saved or not. Raises Unsupported for a tensor that the file lacks, for a key that PEFT
    doesn't take, and where PEFT can't tell what it saves.
    """
    expected, given = set(state_of_adapter(wrapped, _NAME)), set(keys)
    free = set(state_of_adapter(wrapped, _NAME, embeddings=True))
    lacking = sorted(expected - given)
    idle = sorted(key for key in given - free if without_copies(key) not in free)
    if lacking or idle:
        what = f"lacks {lacking[0]}" if lacking else f"holds {idle[0]}, which PEFT doesn't take"
        raise Unsupported(f"the file of the adapter {what}", "save it again with the PEFT that loads it")


COPIES = r"modules_to_save(?:\.default)?|original_module"
"""What PEFT calls the two copies of a module that it trains whole; word embeddings are saved under these names too."""


def without_copies(key: str) -> str:
    """Removes from a key of an adapter's file the name of a copy, under which PEFT may save a tensor again."""
    return re.sub(rf"\.(?:{COPIES})\.", ".", key)


GENERATING = ("CAUSAL_LM", "SEQ_2_SEQ_LM")
"""The tasks whose models take a method of generation from the model inside, which one with another head lacks."""


def merged_model(model: Any, folder: Path, config: Mapping[str, Any]) -> Any:
    """Merges an adapter into the model's weights with PEFT, without PEFT's layers. Raises as the load does."""
    loaded = model_with_adapter(model, folder, config)
    merge = getattr(loaded, "merge_and_unload", None)  # prompts and prefixes have none: nothing of them is a weight
    try:
        if merge is None or loaded.active_peft_config.is_prompt_learning:
            raise NotImplementedError("its method changes no weights")
        return merge(safe_merge=True)
    except Exception as err:  # whatever a method of PEFT raises
        method = config.get("peft_type")
        raise Unsupported(f"PEFT can't merge an adapter of the kind {method}: {err}", "serve it with PEFT") from err


def why_peft_not_run(config: Mapping[str, Any]) -> str:
    """Gives the reason why PEFT isn't run: it would import what a configuration names, or a pattern could take long."""
    named = next((name for name in _IMPORTING if config.get(name)), "")
    if named:
        return f"the configuration sets {named}, with which PEFT imports a package that it names"
    if config.get("peft_type") == "XLORA":
        return "X-LoRA loads other adapters, which the configuration doesn't hold"
    patterns = [config[name] for name in _PATTERNS if isinstance(config.get(name), str)]
    patterns += [key for name in _TABLES if isinstance(config.get(name), dict) for key in config[name]]
    slow = next((text for text in patterns if not is_quick_pattern(str(text))), None)
    return "" if slow is None else f"{slow[:40]!r} is a pattern that headscope does not evaluate"


def is_quick_pattern(pattern: str) -> bool:
    """True if a regular expression of a configuration surely takes no long time on the name of a module."""
    # Nested and many repeats can take exponential time: the pattern comes from a foreign file.
    repeats = len(re.findall(r"(?<!\\)[*+{]", pattern))
    return len(pattern) <= _LONGEST and repeats <= _REPEATS and not re.search(r"\)[*+{]", pattern)


def _missing_parameters(wrapped: Any, names: Iterable[str]) -> Iterable[str]:
    from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING

    prefix = PEFT_TYPE_TO_PREFIX_MAPPING.get(wrapped.peft_config[_NAME].peft_type, "")
    own = (name for name in names if prefix in name and _NAME in name)
    return (name for name in own if not any(part in name for part in _SHARED_AT_LOAD))


def _idle_factors(wrapped: Any) -> Iterable[tuple[str, float]]:
    for path, part in wrapped.named_modules():
        factors = getattr(part, "scaling", None)
        factor = factors.get(_NAME) if isinstance(factors, dict) else None
        if isinstance(factor, int | float) and (factor == 0 or not math.isfinite(factor)):
            yield name_in_base(path), factor


def name_in_base(name: str) -> str:
    """Gives the name that a tensor or a module of a PeftModel has in the model that it wraps, where it is there."""
    prefix = next(prefix for prefix in PREFIXES if name.startswith(prefix))
    return plain_name(name.removeprefix(prefix))
