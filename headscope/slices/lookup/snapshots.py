"""`snapshot`: a checkpoint's configuration and tensor headers in one small file."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from typing import Unpack

from headscope.core.facts import CheckpointManifest
from headscope.core.source.reading.reading import read_checkpoint
from headscope.core.source.request import Progress
from headscope.shell.options.calls import use_case
from headscope.shell.shown import Shown, fields_of
from headscope.shell.values import make_request
from headscope.slices.lookup.options import SnapshotOptions


@dataclass(frozen=True, slots=True, repr=False)
class Snapshot(Shown, CheckpointManifest):
    """The result of `snapshot`: the manifest that was written, and the file `output` that holds it."""

    output: str = ""


@use_case
def snapshot(
    reference: str | PathLike[str],
    output: str | PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[SnapshotOptions],
) -> Snapshot:
    """Writes a checkpoint's configuration and tensor headers to a file that every function accepts as a checkpoint.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, a local folder or weight file, a PEFT adapter
            or a snapshot file.
        output: The file to write, atomically.
        options: See `SnapshotOptions`.
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
    request = make_request(reference, options)
    from headscope.core.checkpoints.snapshot import write_snapshot

    manifest = read_checkpoint(request, progress, joins_chain=False)
    write_snapshot(manifest, fspath(output))
    return Snapshot(**fields_of(manifest), output=fspath(output))
