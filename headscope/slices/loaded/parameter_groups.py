"""`parameter_groups`: the parameters of a model in groups for an optimizer, by where their values come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from headscope.core.facts import ParameterStatus, Report
from headscope.core.facts.counting import few_of
from headscope.core.facts.stored.weights import NEW_AT_LOAD
from headscope.core.source.request import ModuleRequest, is_in_memory
from headscope.errors import Unsupported, UsageError
from headscope.shell.options.calls import use_case
from headscope.shell.options.checkpoint import ModuleOptions
from headscope.shell.values import module_options

if TYPE_CHECKING:
    from torch import nn

_NEW, _LOADED, _ADAPTER, _UNKNOWN = "new", "loaded", "adapter", "unknown"


@use_case
def parameter_groups(
    model: nn.Module, *, head_lr: float, base_lr: float, decay: float | None = None, **options: Unpack[ModuleOptions]
) -> list[dict[str, Any]]:
    """The parameters that train, in groups for an optimizer: new ones with `head_lr`, loaded ones with `base_lr`.

    Each group has `params`, `lr` and a `name`: `new` for what the checkpoint didn't give (the head, a
    new pooler), `loaded`, `adapter` for what PEFT added beside loaded layers, `unknown` for parameters of a loaded base
    model whose origin is not known, such as a resized embedding. Biases and normalizations are in groups of
    `, no decay` with a `weight_decay` of 0, as in `Trainer`; for the others, the optimizer's holds. Frozen parameters,
    and parameters of the head that the logits don't depend on, are in no group. What was changed after the load, even
    by `reset_parameters()`, counts as loaded: numbers don't say whether they were trained or drawn.

    Args:
        model: The model in memory, wrapped or not. It stays untouched.
        head_lr: Learning rate of new parameters.
        base_lr: Learning rate of all others.
        decay: Weight decay of the others (default: what the optimizer is given).
        options: See `ModuleOptions`.

    Returns:
        The groups that hold a parameter, as `torch.optim` takes them; for `Trainer`, give an optimizer made of them.

    Raises:
        UsageError: A rate is not a positive number, or nothing trains.
        HeadscopeError: It is not known which parameters a checkpoint gave, or the head can't be traced.

    Example:
        >>> import headscope
        >>> from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification
        >>> BertForMaskedLM(BertConfig(hidden_size=24, num_hidden_layers=1, vocab_size=99)).save_pretrained("base")
        >>> model = BertForSequenceClassification.from_pretrained("base", num_labels=3)
        >>> groups = headscope.parameter_groups(model, head_lr=1e-3, base_lr=2e-5, decay=0.01)
        >>> [(group["name"], len(group["params"]), group["lr"]) for group in groups]
        [('new', 2, 0.001), ('new, no decay', 2, 0.001), ('loaded', 9, 2e-05), ('loaded, no decay', 12, 2e-05)]
    """
    if not is_in_memory(model):
        raise UsageError("parameter_groups takes a model in memory", "load it with from_pretrained, and give the model")
    for name, value in (("head_lr", head_lr), ("base_lr", base_lr), ("decay", 0.0 if decay is None else decay)):
        least = 0 if name == "decay" else math.ulp(0.0)  # the smallest positive float: a rate must be above 0
        # A bool is an int, and NaN fails both comparisons.
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
            raise UsageError(f"{name} must be a positive number, not {value!r}", "give a number such as 2e-5")
    from headscope.core.source.live.module import unwrap
    from headscope.core.upstream.transformers import decayed_names
    from headscope.shared.loaded.head_memory import beside_layers
    from headscope.slices.inspect.live import inspect_module

    report = inspect_module(model, ModuleRequest(**module_options(options, ModuleOptions.__annotations__)))
    unwrapped = unwrap(model)
    held = unwrapped.held if unwrapped.is_sharded else dict(unwrapped.module.named_parameters())
    decayed = decayed_names(unwrapped.module)
    groups: dict[tuple[str, bool], list[Any]] = {}
    for name, kind in _group_parameters(report, held, beside_layers(unwrapped.module)).items():
        groups.setdefault((kind, name in decayed), []).append(held[name])
    rates = {_NEW: head_lr, _LOADED: base_lr, _ADAPTER: base_lr, _UNKNOWN: base_lr}
    return [
        {"params": groups[kind, decays], "lr": rate, "name": kind if decays else f"{kind}, no decay"}
        | ({} if decays and decay is None else {"weight_decay": decay if decays else 0.0})
        for kind, rate in rates.items() for decays in (True, False) if (kind, decays) in groups
    ]  # fmt: skip


def _group_parameters(report: Report, held: Mapping[str, nn.Parameter], added: frozenset[str]) -> dict[str, str]:
    """Gives the group of each parameter that trains; `added` are those that PEFT put beside layers.

    Raises UsageError if no parameter trains, and Unsupported if the origin of one is not known.
    """
    status = {item.name: item.status for item in report.weights.parameters}
    idle = {item.name for item in (report.head.tensors if report.head else ()) if not item.live}
    trained = [name for name, item in held.items() if item.requires_grad and name not in idle]
    if not trained:
        raise UsageError("every parameter is frozen, so nothing would train", "set requires_grad of the head")
    kinds = {}
    for name in trained:
        found = status.get(name)  # a parameter that PEFT added has none
        if found is None:
            kinds[name] = _ADAPTER if name in added else _UNKNOWN
        else:
            kinds[name] = _NEW if found in NEW_AT_LOAD else _UNKNOWN if found is ParameterStatus.UNKNOWN else _LOADED
    unknown = [name for name, kind in kinds.items() if kind == _UNKNOWN]
    in_base = {item.name for item in report.weights.parameters if item.in_base}
    if unknown and (not set(unknown) <= in_base or not report.weights.loaded):
        why = "; ".join(gap.reason for gap in report.not_determined) or "nothing in the model shows it"
        raise Unsupported(
            f"it is not known whether a checkpoint gave {few_of(unknown)}: {why}",
            "give loaded_from, or loading_info of from_pretrained(..., output_loading_info=True)",
        )
    return kinds
