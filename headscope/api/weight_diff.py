"""`diff_weights`: every parameter of a model against its checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

from headscope.api.options import given_options, make_request, module_options, refuses_unknown
from headscope.api.shown import Examination, shown
from headscope.examination.checkpoint import examine_weights
from headscope.examination.in_memory import is_in_memory
from headscope.examination.request import Progress

if TYPE_CHECKING:
    from torch import nn


@overload
def diff_weights(
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
    progress: Progress | None = None,
) -> Examination: ...
@overload
def diff_weights(
    reference: nn.Module,
    *,
    labels: str | Iterable[str] | None = None,
    task: str | None = None,
    offline: bool = False,
    loaded_from: str | PathLike[str] | None = None,
    loading_info: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Examination: ...
@refuses_unknown
def diff_weights(
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
    loaded_from: str | PathLike[str] | None = None,
    loading_info: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Examination:
    """Compares every parameter of the model with the checkpoint, without tracing the head.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, a local folder or weight file, a PEFT adapter
            or a snapshot file; or a model in memory
            (`nn.Module`, also compiled or wrapped), which stays untouched and doesn't run.
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
        loaded_from: The checkpoint that the module was loaded from, if its config doesn't name it. For a module only.
        loading_info: What `from_pretrained(..., output_loading_info=True)` returned: replaces reading the checkpoint.
            For a module only.
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
    options = given_options(locals(), "reference", "progress")
    if is_in_memory(reference):
        from headscope.examination.live import diff_module

        return shown(diff_module(reference, **module_options(options, "diff_weights")))
    return shown(examine_weights(make_request(reference, options), progress))
