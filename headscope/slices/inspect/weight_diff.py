"""`diff_weights`: every parameter of a model against its checkpoint."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Unpack, overload

from headscope.core.source.checkpoint import examine_weights
from headscope.core.source.request import ModuleRequest, Progress, is_in_memory
from headscope.shared.report.examination import Examination, shown
from headscope.shell.options.calls import use_case
from headscope.shell.options.checkpoint import CachedOptions, LoadedOptions
from headscope.shell.values import make_request, module_options
from headscope.slices.inspect.options import DiffOptions

if TYPE_CHECKING:
    from torch import nn


@overload
def diff_weights(
    reference: str | PathLike[str], *, progress: Progress | None = None, **options: Unpack[CachedOptions]
) -> Examination: ...
@overload
def diff_weights(
    reference: nn.Module, *, progress: Progress | None = None, **options: Unpack[LoadedOptions]
) -> Examination: ...
@use_case
def diff_weights(
    reference: str | PathLike[str] | nn.Module, *, progress: Progress | None = None, **options: Unpack[DiffOptions]
) -> Examination:
    """Compares every parameter of the model with the checkpoint, without tracing the head.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, a local folder or weight file, a PEFT adapter
            or a snapshot file; or a model in memory
            (`nn.Module`, also compiled or wrapped), which stays untouched and doesn't run.
        options: See `DiffOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        The report with `weights` filled and `head` None. `new`, `mismatched` and `unused` are what `from_pretrained`
        reports as missing, mismatched and unexpected keys.

    Raises:
        UsageError: An option is unknown, has an invalid value, or doesn't apply to this kind of model.
        HeadscopeError: The checkpoint can't be read or examined: `NotFound`, `Gated`, `Offline`, `NetworkError`,
            `Malformed` or `Unsupported`. `message` says what happened, `hint` what to do next.

    Example:
        >>> import headscope
        >>> report = headscope.diff_weights("roberta-base", num_labels=3, offline=True)
        >>> report.weights.new[0]
        'classifier.dense.bias'
    """
    if is_in_memory(reference):
        from headscope.slices.inspect.live import diff_module

        return shown(diff_module(reference, ModuleRequest(**module_options(options, LoadedOptions.__annotations__))))
    return shown(examine_weights(make_request(reference, options), progress))
