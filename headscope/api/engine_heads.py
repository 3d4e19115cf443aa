"""`engines`: which head each inference engine runs for a checkpoint."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Unpack

from headscope.api.arguments import PlaceOptions, ReportCacheOption, use_case
from headscope.api.options import make_request
from headscope.api.results.shown import Engines, fields_of
from headscope.errors import UsageError
from headscope.examination.base.request import Progress, Request, is_in_memory
from headscope.examination.checkpoint.examining import Examined, examine
from headscope.facts import CheckpointKind
from headscope.facts.results.engines import EnginesReport
from headscope.serving.cited import facts_on
from headscope.serving.judging import judge_engines


class EnginesOptions(PlaceOptions, ReportCacheOption, total=False):
    """Where the checkpoint is, and whether results are kept."""


@use_case
def engines(
    reference: str | PathLike[str],
    *,
    engine: str | None = None,
    progress: Progress | None = None,
    **options: Unpack[EnginesOptions],
) -> Engines:
    """Compares the head that inference engines run for a checkpoint with the one that Transformers runs.

    The answers come from facts that were read in the engines' sources, each at one version, file and line. No engine
    is run or imported, and no numbers are compared. What the facts don't cover is not determined.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, a local folder or weight file, or a snapshot.
        engine: One engine, such as `vllm`, or `vllm@0.33.0` for a version (default: all, in the installed version,
            otherwise in the one that was read).
        options: See `EnginesOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        One entry for each engine, and a verdict.

    Raises:
        UsageError: There are no facts on the engine, or the version is invalid.
        HeadscopeError: The checkpoint can't be read or examined.

    Example:
        >>> import headscope
        >>> name = "distilbert-base-uncased-finetuned-sst-2-english"
        >>> found = headscope.engines(name, engine="llama-cpp@0.3.36", offline=True)
        >>> found.engines[0].formula
        'classifier(tanh(pre_classifier(h[CLS])))'
    """
    if is_in_memory(reference):
        raise UsageError("engines load checkpoints, and a model in memory is none", "save it, and give the folder")
    if engine is not None:
        facts_on(engine.partition("@")[0])
    request = make_request(reference, options)
    examined = examine("inspect", request, progress)
    return Engines(**fields_of(engines_for(request, examined, engine)))


def engines_for(request: Request, examined: Examined, engine: str | None) -> EnginesReport:
    """What the engines, or the named one, do with the head of a checkpoint that was examined."""
    return judge_engines(examined.report, examined.manifest, engine, _limit(request, examined))


def _limit(request: Request, examined: Examined) -> str:
    """Why the facts don't cover what was named; "" if they do: engines load whole folders and repositories."""
    is_snapshot = examined.manifest.kind is CheckpointKind.SNAPSHOT
    if request.location.subfolder or request.location.variant:
        return "the facts don't cover subfolders and variants"
    if not is_snapshot and Path(request.reference).is_file():
        return "one weight file was named, and engines load folders"
    return ""
