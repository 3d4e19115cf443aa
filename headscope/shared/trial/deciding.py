"""Decision whether a checkpoint is run, by what was read of it, before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from headscope.core.facts import CheckpointKind, CheckpointManifest, GapTopic, Report
from headscope.core.facts.counting import few_of
from headscope.core.facts.report import find_missing
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.source.reading.reading import WITHOUT_WEIGHTS, base_of_adapter, in_local_folder
from headscope.core.source.request import Request

_SHARE = 0.5
"""The share of free memory that the weights may take: the loader holds some of them twice for a moment."""
OFF = "HEADSCOPE_NO_RUN"
"""The environment variable that leaves runs out where nobody asks for one."""


def is_run_off() -> bool:
    """True if the environment leaves runs out."""
    return os.environ.get(OFF, "").strip().lower() not in ("", "0", "false", "no", "off")


def is_run_likely(request: Request) -> bool:
    """True if a request names a folder on this machine whose run can be prepared before it was read."""
    return request.run is not False and not (request.run is None and is_run_off()) and Path(request.reference).is_dir()


def why_not_run(checkpoint: Checkpoint, *, is_wanted: bool | None = None) -> str:
    """Says why a checkpoint isn't run; "" if it is. `is_wanted` replaces what its request says of a run."""
    wanted = checkpoint.request.run if is_wanted is None else is_wanted
    return next(_reasons_against(checkpoint, wanted), "")


def _reasons_against(checkpoint: Checkpoint, wanted: bool | None) -> Iterator[str]:
    """Yields the reasons not to run a checkpoint; the last may be empty. What takes longer to find out comes later."""
    manifest, location = checkpoint.manifest, checkpoint.request.location
    kinds = {manifest.kind, *([manifest.adapter.kind] if manifest.adapter else [])}
    # Not ADAPTER: a run loads an adapter into its base model.
    for kind in (CheckpointKind.SNAPSHOT, CheckpointKind.CLASS):
        if kind in kinds:
            yield f"it is {WITHOUT_WEIGHTS[kind]}"
    if wanted is False:
        yield "--no-run leaves it out"
    if wanted is None and is_run_off():
        yield f"{OFF} is set"
    if checkpoint.report.checkpoint.kind is CheckpointKind.HUB and not wanted:
        yield "it is on the Hub, and --run would download it"
    if manifest.adapter is not None and not wanted:
        base = in_local_folder(base_of_adapter(checkpoint.request, manifest)).reference
        if not Path(base).is_dir():
            yield f"its base model {base} is not on this machine, and --run would download it"
    yield from _reasons_in_report(checkpoint.report, manifest)
    if location.subfolder or location.variant:
        yield "--subfolder and --variant are not run"
    if Path(location.reference).is_file():
        yield "a weight file without its folder has no tokenizer"
    if not wanted:
        yield too_large(manifest.bytes_total)


def _reasons_in_report(report: Report, manifest: CheckpointManifest) -> Iterator[str]:
    """Yields what the examination shows."""
    gaps = [gap for gap in report.not_determined if gap.topic not in _ANSWERED_BY_A_RUN]
    if manifest.gaps or gaps or report.unknown:
        yield "headscope could not read all of it"
    if report.checkpoint.states:
        yield "it needs `headscope repair` first"
    missing = find_missing(report)
    random = (*missing.head, *missing.elsewhere)
    reshaped = {item.parameter for item in report.weights.mismatched}
    absent = tuple(name for name in random if name not in reshaped)
    if absent:
        yield f"the checkpoint doesn't give {few_of(absent)}"
    if random:
        yield f"the checkpoint has {few_of(random)} in another shape"
    if report.model.quantization is not None:
        yield "its weights are quantized"


_ANSWERED_BY_A_RUN = (
    GapTopic.HEAD_PATH, GapTopic.WITHOUT_PADDING, GapTopic.SINGLE_TOKEN, GapTopic.OTHER_INPUTS, GapTopic.POOLING,
    GapTopic.LONG_TEXTS, GapTopic.ADAPTER_FIT,
)  # fmt: skip
"""What stays open where a model can't be traced, or PEFT needs numbers: the run shows what happens."""


def too_large(size: int) -> str:
    """Says why weights of that many bytes don't fit into the free memory; "" if they do."""
    import psutil

    free = psutil.virtual_memory().available
    if size <= free * _SHARE:
        return ""
    return f"its weights take {size / 1e9:.1f} GB, more than half of the free memory ({free / 1e9:.1f} GB)"
