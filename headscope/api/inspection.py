"""`inspect`: the whole examination of a checkpoint or of a model in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

from headscope.api.options import given_options, make_request, module_options, refuses_unknown
from headscope.api.shown import Examination, shown
from headscope.examination.checkpoint import examine
from headscope.examination.in_memory import is_in_memory
from headscope.examination.request import Progress

if TYPE_CHECKING:
    from torch import nn


@overload
def inspect(
    reference: str | PathLike[str],
    *,
    num_labels: int | None = None,
    labels: str | Iterable[str] | None = None,
    task: str | None = None,
    model_class: str | None = None,
    tokens: str | Iterable[str] | None = None,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    cache_dir: str | PathLike[str] | None = None,
    token: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    adapter: str | PathLike[str] | None = None,
    timeout: float | None = None,
    cache: bool = False,
    verify: bool = False,
    health: bool = False,
    progress: Progress | None = None,
) -> Examination: ...
@overload
def inspect(
    reference: nn.Module,
    *,
    labels: str | Iterable[str] | None = None,
    task: str | None = None,
    offline: bool = False,
    example_inputs: Any = None,
    output: str | None = None,
    loaded_from: str | PathLike[str] | None = None,
    loading_info: Mapping[str, Any] | None = None,
    verify: bool = False,
    health: bool = False,
    progress: Progress | None = None,
) -> Examination: ...
@refuses_unknown
def inspect(
    reference: str | PathLike[str] | nn.Module,
    *,
    num_labels: int | None = None,
    labels: str | Iterable[str] | None = None,
    task: str | None = None,
    model_class: str | None = None,
    tokens: str | Iterable[str] | None = None,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    cache_dir: str | PathLike[str] | None = None,
    token: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    adapter: str | PathLike[str] | None = None,
    timeout: float | None = None,
    cache: bool = False,
    verify: bool = False,
    health: bool = False,
    example_inputs: Any = None,
    output: str | None = None,
    loaded_from: str | PathLike[str] | None = None,
    loading_info: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Examination:
    """Examines the head of a model: its operations and shapes, and which of its weights the checkpoint gave.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, a local folder or weight file, a PEFT adapter
            or a snapshot file; or a model in memory
            (`nn.Module`, also compiled or wrapped), which stays untouched.
        num_labels: Number of classes (default: from the config); 1 means regression.
        labels: Class names in order, several or one text `"A,B,C"`.
        task: A task such as `sequence-classification` or `token-classification` (default: from the checkpoint).
        model_class: A class of Transformers, such as `BertForSequenceClassification`.
        tokens: Tokens of a causal language model whose logits are the scores, such as `"no,yes"` of a reranker.
        revision: Branch, tag or commit on the Hub (default: `main`).
        subfolder: Folder inside the repository or the local folder.
        variant: Variant of the weight files, such as `fp16` for `model.fp16.safetensors`.
        cache_dir: The Hub's cache folder (default: `$HF_HUB_CACHE`).
        token: Access token for gated and private repositories (default: `$HF_TOKEN` or the stored login).
        offline: Make no network requests: use local files, the Hub's cache and the bundled snapshots.
        trust_remote_code: Run model code that comes with the checkpoint.
        adapter: A PEFT adapter (Hub ID or folder) to put on `reference`.
        timeout: Total time limit for Hub requests, in seconds (default: 120).
        cache: Read and write the report cache.
        verify: Report how the gradients of the head agree with the traced pooling, and what padding changes.
        health: Report whether the classifier was ever trained, from its own numbers: `report.health`.
        example_inputs: What the module's `forward` takes: a mapping of arguments, a tensor, or several in order, with a
            batch axis of at least 1. Models of Transformers don't need it. For a module only.
        output: Name of the scores to examine if `forward` returns several. For a module only.
        loaded_from: The checkpoint that the module was loaded from, if its config doesn't name it. For a module only.
        loading_info: What `from_pretrained(..., output_loading_info=True)` returned: replaces reading the checkpoint.
            For a module only.
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
    options = given_options(locals(), "reference", "progress")
    if is_in_memory(reference):
        from headscope.examination.live import inspect_module

        return shown(inspect_module(reference, **module_options(options, "inspect")))
    from headscope.examination.findings import with_findings

    request = make_request(reference, options)
    examined = examine("inspect", request, progress)
    report = with_findings(examined, request)
    if request.health:
        from headscope.examination.health import health_of_checkpoint

        (progress or (lambda sentence: None))("reading the classifier")
        report = replace(report, health=health_of_checkpoint(examined, request))
    return shown(report)
