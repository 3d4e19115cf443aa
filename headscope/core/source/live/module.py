"""A caller's model in memory: taken out of its wrappers, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headscope.core.source.live.scorers import Scorer, activation_of, scorer_of, scorer_of_setfit, trained_inside
from headscope.core.upstream import accelerate
from headscope.core.upstream.optional import deepspeed, sentence_transformers as sentence
from headscope.core.upstream.optional.peft_prompts import PromptCaller, caller_of
from headscope.core.upstream.optional.setfit import is_setfit
from headscope.errors import Unsupported, UsageError

if TYPE_CHECKING:
    from torch import nn


_QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")
_ORIGINAL = "give the Python module that it was made from"


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """A model without the wrappers around it, whose names are kept, outermost first.

    `held` are the parameters of the process under the names of the model. `is_sharded` says that these are parts of
    whole ones: then `module` is a copy on the meta device, with the whole shapes. `offloaded` reads the tensors that
    `module` has on the meta device because Accelerate keeps them elsewhere, by their names. `scorer` is set for a
    module that makes scores of what a model of Transformers inside gives. `activation` is what a wrapper puts on the
    scores, "" for none that does. `caller` is PEFT's model around it where that gives it virtual tokens.
    """

    module: nn.Module
    wrappers: tuple[str, ...]
    held: Mapping[str, nn.Parameter]
    is_sharded: bool = False
    scorer: Scorer | None = None
    activation: str = ""
    offloaded: Mapping[str, accelerate.TensorReader] = field(default_factory=dict)
    caller: PromptCaller | None = None

    @property
    def origin(self) -> nn.Module:
        """Part that `from_pretrained` may have loaded: the Transformers model inside a scorer, or the whole module."""
        return self.module if self.scorer is None else self.scorer.inside

    @property
    def prefix(self) -> str:
        """Prefix of the names of `origin` in the module."""
        return f"{self.scorer.path}." if self.scorer is not None and self.scorer.path else ""


def unwrap(reference: Any) -> Unwrapped:
    """Takes a model out of torch.compile, DataParallel, FSDP, DeepSpeed, Lightning and PEFT, adapters and all.

    Raises UsageError or Unsupported for what has no `forward` in Python or no weights to examine.
    """
    import torch
    from torch import nn

    if isinstance(reference, type):
        raise UsageError(
            f"{reference.__name__} is a class, not a model", "give an instance, or a checkpoint with model_class=..."
        )
    if is_setfit(reference):
        return _with_scorer(Unwrapped(nn.Identity(), (), {}), scorer_of_setfit(reference))
    found = _peel_wrappers(Unwrapped(reference, (), {}))
    if not isinstance(found.module, nn.Module):
        raise Unsupported(
            f"{_class_word(found.module)} has no Python forward whose operations headscope can record", _ORIGINAL
        )
    if isinstance(found.module, torch.jit.ScriptModule):
        what = f"{_class_word(found.module)} is TorchScript, whose operations headscope can't record"
        raise Unsupported(what, _ORIGINAL)
    found, shards = _with_whole_parameters(found, reference)
    found = _unwrap_lightning(found)
    _refuse_unexaminable(found.module)
    if found.scorer is None and (scorer := scorer_of(found.module)) is not None:
        found = _with_scorer(found, scorer)
    own = found.module.named_parameters(remove_duplicate=False)
    return replace(found, held={name: shards.get(id(item), item) for name, item in own})


def _peel_wrappers(found: Unwrapped) -> Unwrapped:
    """Takes the wrappers off, and notes their names."""
    from torch import nn

    while True:
        inner = _inside_wrapper(found.module)
        if inner is None:
            break
        activation = activation_of(found.module) if sentence.is_cross_encoder(found.module) else found.activation
        found = replace(
            found, module=inner, wrappers=(*found.wrappers, type(found.module).__name__), activation=activation,
            caller=caller_of(found.module) or found.caller,
        )  # fmt: skip
    if isinstance(found.module, nn.Module) and accelerate.is_prepared(found.module):
        found = replace(found, wrappers=(*found.wrappers, accelerate.NAME))
    return found


def _unwrap_lightning(found: Unwrapped) -> Unwrapped:
    """Gives the model that a LightningModule trains; any other module stays as it is."""
    inner = trained_inside(found.module)
    if inner is None:
        return found
    if isinstance(inner, Scorer):
        return _with_scorer(found, inner)
    return _peel_wrappers(replace(found, module=inner, wrappers=(*found.wrappers, type(found.module).__name__)))


def _with_scorer(found: Unwrapped, scorer: Scorer) -> Unwrapped:
    return replace(
        found, module=scorer.module, scorer=scorer, activation=scorer.activation or found.activation,
        held=dict(scorer.module.named_parameters(remove_duplicate=False)),
    )  # fmt: skip


def _with_whole_parameters(found: Unwrapped, root: nn.Module) -> tuple[Unwrapped, dict[int, nn.Parameter]]:
    """Replaces shards in memory by whole parameters; gives the shards by the ids of the whole ones."""
    from headscope.core.upstream.sharded import is_fully_sharded, is_sharded, whole_copy, without_hooks

    if not (is_sharded(found.module) or is_sharded(root)):
        offloaded = accelerate.offloaded(found.module)
        return replace(found, module=without_hooks(found.module), offloaded=offloaded) if offloaded else found, {}
    wrappers = found.wrappers + (("FSDPModule",) if is_fully_sharded(found.module) else ())
    copied = whole_copy(found.module, root)
    return replace(found, module=copied.module, wrappers=wrappers, is_sharded=True), copied.held


def _inside_wrapper(wrapper: Any) -> Any:
    """Gives the model that a wrapper wraps; None for no wrapper."""
    from torch import nn

    from headscope.core.upstream.sharded import inside_fsdp
    from headscope.core.upstream.torch import inside_checkpointed, inside_compiled, inside_parallel

    if not isinstance(wrapper, nn.Module):
        return None
    readers = (
        inside_compiled, inside_parallel, inside_fsdp, inside_checkpointed, deepspeed.inside_engine,
        sentence.classifier_inside,
    )  # fmt: skip
    module: Any = wrapper
    for reader in readers:
        inner = reader(module)
        if inner is not None:
            return inner
    return module.get_base_model() if callable(getattr(module, "get_base_model", None)) else None


def _refuse_unexaminable(module: nn.Module) -> None:
    from torch.nn.parameter import is_lazy

    name = _class_word(module)
    packed = next((part for part in module.modules() if type(part).__module__.startswith(_QUANTIZED)), None)
    if packed is not None:
        raise Unsupported(
            f"{name} holds quantized layers ({_class_word(packed)}) whose weights are packed and not parameters",
            "give the model before it is quantized",
        )
    if any(is_lazy(item) for item in (*module.parameters(), *module.buffers())):
        raise UsageError(f"{name} holds lazy parameters that have no shape yet", "run one forward pass first")
    if next(module.parameters(), None) is None:
        raise Unsupported(f"{name} has no parameters, so there is no head to examine", "give a model with weights")


def _class_word(value: Any) -> str:
    return str(getattr(value, "original_name", None) or type(value).__name__)
