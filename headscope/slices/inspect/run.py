"""`inspect`: the whole examination of a checkpoint or of a model in memory."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Unpack, overload

from headscope.core.source.checkpoint import examine
from headscope.core.source.request import ModuleRequest, Progress, is_in_memory
from headscope.shared.report.examination import Examination, shown
from headscope.shell.options.calls import use_case
from headscope.shell.values import make_request, module_options
from headscope.slices.inspect.options import CheckpointInspection, InspectOptions, ModuleInspection

if TYPE_CHECKING:
    from torch import nn


@overload
def inspect(
    reference: str | PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[CheckpointInspection],
) -> Examination: ...
@overload
def inspect(
    reference: nn.Module,
    *,
    progress: Progress | None = None,
    **options: Unpack[ModuleInspection],
) -> Examination: ...
@use_case
def inspect(
    reference: str | PathLike[str] | nn.Module,
    *,
    progress: Progress | None = None,
    **options: Unpack[InspectOptions],
) -> Examination:
    """Examines the head of a model: its operations and shapes, and which of its weights the checkpoint gave.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, a local folder or weight file, a PEFT adapter
            or a snapshot file; a class of Transformers by its name, in its default configuration; or a model in memory
            (`nn.Module`, also compiled or wrapped), which stays untouched.
        options: See `InspectOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        The report. Axes that vary are named in shapes (`batch`, `sequence`), others are integers; sizes of files are in
        bytes. `print` shows what the terminal shows, `to_dict()` gives what `--json` prints.

    Raises:
        UsageError: An option is unknown, has an invalid value, or doesn't apply to this kind of model.
        HeadscopeError: The checkpoint can't be read or examined: `NotFound`, `Gated`, `Offline`, `NetworkError`,
            `Malformed` or `Unsupported`. `message` says what happened, `hint` what to do next.

    Example:
        >>> import headscope
        >>> report = headscope.inspect("roberta-base", num_labels=3, offline=True)
        >>> report.head.formula
        'logits = out_proj(tanh(dense(h[<s>])))'
        >>> len(report.weights.new)
        4
    """
    if is_in_memory(reference):
        from headscope.slices.inspect.live import inspect_module

        return shown(
            inspect_module(reference, ModuleRequest(**module_options(options, ModuleInspection.__annotations__)))
        )
    from headscope.checks.findings import with_findings

    request = make_request(reference, options)
    checkpoint = examine("inspect", request, progress, takes_class=True)
    report = with_findings(checkpoint)
    if request.health:
        from headscope.core.source.health.reading import health_of_checkpoint

        (progress or (lambda sentence: None))("reading the classifier")
        report = replace(report, health=health_of_checkpoint(checkpoint))
    return shown(report)
