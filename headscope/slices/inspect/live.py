"""`inspect` and `diff_weights` of a model in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headscope.checks.findings import findings_of, likely_profile
from headscope.core.facts import Report
from headscope.core.source.live.live_model import LiveModel
from headscope.core.source.live.origin import LoadOrigin
from headscope.core.source.request import ModuleRequest

if TYPE_CHECKING:
    from torch import nn


def inspect_module(module: nn.Module, module_request: ModuleRequest) -> Report:
    """Examines `module` as it is: see `LiveModel`.

    `example_inputs` is what its `forward` takes (a mapping, a tensor, or several in order); a model of Transformers
    needs none. `output` names the scores to examine where the forward returns several. With `health`, the numbers of
    the classifier are judged too. Raises Unsupported if the forward fails or gives no scores.
    """
    live_model = LiveModel(module, module_request)
    report = live_model.report
    if module_request.loading_info is not None or isinstance(live_model.origin, LoadOrigin):
        profile = likely_profile(report)
        found = findings_of(report, profile, live_model.config, live_model.built)
        report = replace(report, findings=found, profile=profile)
    return replace(report, health=live_model.health) if module_request.health else report


def diff_module(module: nn.Module, module_request: ModuleRequest) -> Report:
    """Compares the weights of `module` with the checkpoint that it was loaded from. Does not run it."""
    return replace(LiveModel(module, module_request, is_run=False).report, command="diff-weights", head=None)
