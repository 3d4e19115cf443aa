"""Decision whether a checkpoint is run, by what was read of it, before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from headscope.core.facts import CheckpointKind, GapTopic
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
    return next((reason for reason in (find(checkpoint, wanted) for find in _REASONS) if reason), "")


def _not_wanted(checkpoint: Checkpoint, wanted: bool | None) -> str:
    if wanted is False:
        return "--no-run leaves it out"
    return f"{OFF} is set" if wanted is None and is_run_off() else ""


def _without_weights(checkpoint: Checkpoint, wanted: bool | None) -> str:
    kinds = {checkpoint.manifest.kind, *([checkpoint.manifest.adapter.kind] if checkpoint.manifest.adapter else [])}
    # Not ADAPTER: a run loads an adapter into its base model.
    without = (CheckpointKind.SNAPSHOT, CheckpointKind.CLASS)
    return next((f"it is {WITHOUT_WEIGHTS[kind]}" for kind in without if kind in kinds), "")


def _on_hub(checkpoint: Checkpoint, wanted: bool | None) -> str:
    is_remote = checkpoint.report.checkpoint.kind is CheckpointKind.HUB
    return "it is on the Hub, and --run would download it" if is_remote and not wanted else ""


def _without_base(checkpoint: Checkpoint, wanted: bool | None) -> str:
    manifest = checkpoint.manifest
    if manifest.adapter is None or wanted:
        return ""
    base = in_local_folder(base_of_adapter(checkpoint.request, manifest)).reference
    return "" if Path(base).is_dir() else f"its base model {base} is not on this machine, and --run would download it"


def _incompletely_read(checkpoint: Checkpoint, wanted: bool | None) -> str:
    report = checkpoint.report
    missing = find_missing(report)
    gaps = [gap for gap in report.not_determined if gap.topic not in _ANSWERED_BY_A_RUN]
    if checkpoint.manifest.gaps or gaps or report.unknown:
        return "headscope could not read all of it"
    if report.checkpoint.states:
        return "it needs `headscope repair` first"
    random = (*missing.head, *missing.elsewhere)
    reshaped = {item.parameter for item in report.weights.mismatched}
    absent = tuple(name for name in random if name not in reshaped)
    if random and not absent:
        return f"the checkpoint has {few_of(random)} in another shape"
    return f"the checkpoint doesn't give {few_of(absent)}" if random else ""


_ANSWERED_BY_A_RUN = (
    GapTopic.HEAD_PATH, GapTopic.WITHOUT_PADDING, GapTopic.SINGLE_TOKEN, GapTopic.OTHER_INPUTS, GapTopic.POOLING,
    GapTopic.LONG_TEXTS, GapTopic.ADAPTER_FIT,
)  # fmt: skip
"""What stays open where a model can't be traced, or PEFT needs numbers: the run shows what happens."""


def _not_taken_up(checkpoint: Checkpoint, wanted: bool | None) -> str:
    if checkpoint.report.model.quantization is not None:
        return "its weights are quantized"
    location = checkpoint.request.location
    if location.subfolder or location.variant:
        return "--subfolder and --variant are not run"
    is_file = Path(location.reference).is_file()
    return "a weight file without its folder has no tokenizer" if is_file else ""


def _unasked_and_too_large(checkpoint: Checkpoint, wanted: bool | None) -> str:
    return "" if wanted else too_large(checkpoint.manifest.bytes_total)


def too_large(size: int) -> str:
    """Says why weights of that many bytes don't fit into the free memory; "" if they do."""
    import psutil

    free = psutil.virtual_memory().available
    if size <= free * _SHARE:
        return ""
    return f"its weights take {size / 1e9:.1f} GB, more than half of the free memory ({free / 1e9:.1f} GB)"


_REASONS: tuple[Callable[[Checkpoint, bool | None], str], ...] = (
    _without_weights, _not_wanted, _on_hub, _without_base, _incompletely_read, _not_taken_up, _unasked_and_too_large,
)  # fmt: skip
