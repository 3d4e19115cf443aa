"""`snapshot`: a checkpoint's configuration and tensor headers in one small file."""

from __future__ import annotations

from os import PathLike, fspath

from headscope.api.options import given_options, make_request, refuses_unknown
from headscope.api.shown import Snapshot, fields_of
from headscope.examination.reading import read_checkpoint
from headscope.examination.request import Progress


@refuses_unknown
def snapshot(
    reference: str | PathLike[str],
    output: str | PathLike[str],
    *,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    cache_dir: str | PathLike[str] | None = None,
    token: str | None = None,
    offline: bool = False,
    adapter: str | PathLike[str] | None = None,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Snapshot:
    """Writes a checkpoint's configuration and tensor headers to a file that every function accepts as a checkpoint.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, a local folder or weight file, a PEFT adapter
            or a snapshot file.
        output: The file to write, atomically.
        revision: Branch, tag or commit on the Hub (default: `main`).
        subfolder: Folder inside the repository or the local folder.
        variant: Variant of the weight files, such as `fp16` for `model.fp16.safetensors`.
        cache_dir: The Hub's cache folder (default: `$HF_HUB_CACHE`).
        token: Access token for gated and private repositories (default: `$HF_TOKEN` or the stored login).
        offline: Make no network requests: use local files, the Hub's cache and the bundled snapshots.
        adapter: A PEFT adapter (Hub ID or folder) to put on `reference`.
        timeout: Total time limit for Hub requests, in seconds (default: 120).
        progress: Called with a short sentence before each step.

    Returns:
        What was written. It holds no weights.

    Raises:
        UsageError: An option is unknown, has an invalid value, or doesn't apply to this kind of model.
        HeadscopeError: The checkpoint can't be read or examined: `NotFound`, `Gated`, `Offline`, `NetworkError`,
            `Malformed` or `Unsupported`. `message` says what happened, `hint` what to do next.

    Example:
        >>> import headscope
        >>> headscope.snapshot("roberta-base", "roberta.json", offline=True).output
        'roberta.json'
        >>> headscope.inspect("roberta.json", num_labels=3).model.class_name
        'RobertaForSequenceClassification'
    """
    request = make_request(reference, given_options(locals(), "reference", "output", "progress"))
    from headscope.checkpoints import write_snapshot

    manifest = read_checkpoint(request, progress)
    write_snapshot(manifest, fspath(output))
    return Snapshot(**fields_of(manifest), output=fspath(output))
