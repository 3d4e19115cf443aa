"""Parameters that a load left without weights: which may be so, and the error that names the others."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from inspect import isclass, isroutine
from os import PathLike
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from headscope.core.facts.counting import few_of
from headscope.core.facts.report import find_missing
from headscope.core.source.request import is_in_memory
from headscope.errors import HeadNotLoaded, HeadscopeError, LoadNotJudged, UsageError

if TYPE_CHECKING:
    from torch import nn

    from headscope.core.facts import Report


def refuse_other_things(model: Any) -> None:
    """Raises UsageError for what is not a model in memory, with a hint on what was probably meant."""
    if is_in_memory(model):
        return
    hint = "give a model in memory; for the loads of a block, write `with headscope.strict():`"
    if isinstance(model, str | PathLike):
        hint = "load the checkpoint in `with headscope.strict():`, or examine it with headscope.check(...)"
    elif isroutine(model) or isclass(model):
        hint = "to decorate, write @headscope.strict(), with parentheses"
    elif is_in_memory(getattr(model, "model", None)):
        hint = "give the model in it: its attribute `model`"
    raise UsageError(f"strict judges a model in memory, not {type(model).__name__}", hint)


def judge_in_memory(model: nn.Module, allow: tuple[str, ...]) -> None:
    """Raises HeadNotLoaded for a model that lacks weights of its checkpoint; warns if that can't be determined."""
    from headscope.slices.inspect.run import inspect

    try:
        report: Report = inspect(model)
    except UsageError as err:
        what = f"strict judges a model of Transformers, not {type(model).__name__}"
        raise UsageError(what, _hint_on_models_in(model)) from err
    except HeadscopeError as err:
        warnings.warn(f"headscope.strict can't judge the model: {err.message}", LoadNotJudged, stacklevel=4)
        return
    missing = find_missing(report)
    lost = [name for name in (*missing.head, *missing.elsewhere) if not is_allowed(name, allow)]
    by_adapter = [name for name in lost if ".modules_to_save." in name]
    if lost != by_adapter:
        raise not_loaded(model, report.checkpoint.reference, lost, {})
    gaps = [gap.reason for gap in report.not_determined if gap.topic in ("checkpoint", "head path")]
    gaps += ["an adapter may have given the head, which nothing in memory tells"] if by_adapter else []
    gaps += [] if report.is_compared else ["no checkpoint is known for it"]
    if gaps:
        warnings.warn(f"headscope.strict can't judge the model: {gaps[0]}", LoadNotJudged, stacklevel=4)


def _hint_on_models_in(model: nn.Module) -> str:
    """Names the models of Transformers inside another module, which from_pretrained may have loaded."""
    from transformers import PreTrainedModel

    inside: list[str] = []
    for name, part in () if isclass(model) else model.named_modules():
        if isinstance(part, PreTrainedModel) and not name.startswith(tuple(f"{one}." for one in inside)):
            inside.append(name)
    if inside:
        return f"give the model in it that from_pretrained loaded: model.get_submodule({inside[0]!r})"
    return "give what from_pretrained returned; for the loads of a block, write `with headscope.strict():`"


def read_saved_config(reference: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the configuration beside the weights, in whose place the load may have got another; {} for none."""
    from transformers import PreTrainedConfig

    try:
        found, _ = PreTrainedConfig.get_config_dict(reference, **{**options, "local_files_only": True})
    except (OSError, ValueError):
        return {}
    return dict(found)


def saved_class_count(config: Mapping[str, Any], kind: Any) -> int:
    """Gives the number of classes that a configuration of a family stands for: by default two, and three of BART."""
    try:
        return int(kind.from_dict({**config}).num_labels)
    except Exception:  # whatever a configuration raises for fields of another family
        return int(config.get("num_labels") or len(config.get("id2label") or "12"))


def is_base_class(model: nn.Module) -> bool:
    """True if a class of Transformers has no head: those of an image and a text make scores, too (CLIP)."""
    from headscope.core.model.classes.catalog import names_of_auto_class

    return type(model).__name__ in names_of_auto_class("AutoModel") and not returns_logits(model)


def returns_logits(model: nn.Module) -> bool:
    """True if the forward is annotated to return scores, such as `logits_per_image`."""
    try:
        hint = get_type_hints(model.forward).get("return")
    except Exception:  # an annotation that can't be evaluated
        return False
    kinds = get_args(hint) or (hint,)
    return any(name.startswith("logits") for kind in kinds for name in getattr(kind, "__dataclass_fields__", ()))


def is_allowed(name: str, allow: tuple[str, ...]) -> bool:
    """True if a name stands for the parameter, for a module that holds it, or for both with `*`."""
    return any(name == one or name.startswith(f"{one}.") or fnmatchcase(name, one) for one in allow)


def find_kept_quiet(model: nn.Module, before: set[str], told: Iterable[str]) -> set[str]:
    """Gives the missing parameters of a head that its class tells the loader not to mention.

    A class of one's own can list its head in `_keys_to_ignore_on_load_missing`. What is another parameter under a
    second name was given; and below the base model, classes list what they compute, such as positions.
    """
    quiet = before.difference(told)
    if not quiet:  # of almost every load
        return quiet
    named = dict(model.named_parameters(remove_duplicate=False))
    given = {id(value) for name, value in named.items() if name not in before}
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    return {name for name in quiet if name in named and id(named[name]) not in given and not name.startswith(prefix)}


def holder_of(name: str) -> str:
    """Gives the module that holds a parameter: weight and bias of one layer are new together."""
    return name.rpartition(".")[0] or name


def find_base(model: Any) -> Any:
    """Gives the model in the wrapper of PEFT; a model of Transformers is its own."""
    from transformers import PreTrainedModel

    base = model if isinstance(model, PreTrainedModel) else model.base_model
    return base if isinstance(base, PreTrainedModel) else getattr(base, "model", base)


def has_adapter_for_inference(model: Any) -> bool:
    """True if PEFT has loaded an adapter into the model that isn't to be trained."""
    return any(getattr(one, "inference_mode", False) for one in (getattr(model, "peft_config", None) or {}).values())


def is_of_adapter(model: nn.Module, name: str, missing: Iterable[str]) -> bool:
    """True if the adapter's own copy is in the place of the parameter (`modules_to_save`), and isn't itself missing."""
    module: Any = model
    path: list[str] = []
    for part in name.split(".")[:-1]:
        path.append(part)
        module = getattr(module, part, None)
        if module is None or hasattr(module, "modules_to_save"):
            break
    copies, own_name = f"{'.'.join(path)}.modules_to_save.", name.removeprefix(f"{'.'.join(path)}.")
    lacking = {key.removeprefix(copies).partition(".")[2] for key in missing if key.startswith(copies)}
    return hasattr(module, "modules_to_save") and own_name not in lacking  # keys name the adapter before the parameter


def not_loaded(
    model: nn.Module, reference: str, lost: list[str], saved: Mapping[str, Any], says: str = ""
) -> HeadNotLoaded:
    """Builds the error for lost parameters; the hint depends on what ended: a load, of which class, or an adapter's.

    An adapter's load gives what it `says` first instead of the checkpoint.
    """
    name, rule = type(model).__name__, "HS107" if says else "HS102"
    modules = sorted({one.rpartition(".")[0] or one for one in lost})
    if says:
        hint = (
            f"train and save the head with the adapter: task_type of its LoraConfig, or modules_to_save={modules[:4]}"
        )
    elif name in (saved.get("architectures") or ()):
        hint = "use the save that holds them"
    else:
        hint = "train the head first"
        if "peft" in sys.modules and saved:  # a model in memory was loaded without it
            hint += "; an adapter that brings them can only come after it: give this load num_labels"
    says = says or f"{reference or 'the checkpoint'} doesn't give"
    buffers = {*lost} & {one for one, _ in model.named_buffers(remove_duplicate=False)}
    states = ["newly initialized at every load"] if len(buffers) < len(lost) else []
    # The model is built on the meta device: a load loses what the constructor put into a buffer.
    states += (
        ["missing buffers are uninitialized memory unless `_init_weights` of the class sets them"] if buffers else []
    )
    return HeadNotLoaded(
        f"{says} {few_of(lost)} of {name}: {'; '.join(states)}",
        f"{hint}; if they are meant to be new: headscope.strict(allow={modules[:4]!r}); `headscope explain {rule}`",
        parameters=tuple(lost),
    )
