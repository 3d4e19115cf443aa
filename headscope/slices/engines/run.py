"""`engines`: which head each inference engine runs for a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from os import PathLike
from typing import Unpack

from headscope.core.source.checkpoint import Checkpoint, examine
from headscope.core.source.request import Progress, is_in_memory
from headscope.errors import Unsupported, UsageError
from headscope.shared.serving.cited import facts_on, named_engine, read_engine
from headscope.shared.serving.engine_facts import EngineEvidence, EngineHead, EnginesReport
from headscope.shared.serving.engine_heads import engines_for
from headscope.shared.serving.judging import is_for_resolution
from headscope.shared.serving.running.process import ASKED, Resolution, find_runner, resolve_with_engine, runner_names
from headscope.shell.options.calls import use_case
from headscope.shell.shown import Shown, fields_of
from headscope.shell.values import make_request
from headscope.slices.engines.options import EnginesOptions


class Engines(Shown, EnginesReport):
    """The result of `engines`."""

    __slots__ = ()


@use_case
def engines(
    reference: str | PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[EnginesOptions],
) -> Engines:
    """Compares the head that inference engines run for a checkpoint with the one that Transformers runs.

    The answers come from facts that were read in the engines' sources, each at one version, file and line. What the
    facts don't cover is not determined. vLLM, where it is installed and named, also resolves the configuration itself,
    without weights. With `run`, engines that are installed run a small random copy of the
    configuration next to Transformers, in a process each, and what their scores show replaces what was read.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, a local folder or weight file, a snapshot,
            or a class of Transformers, in its default configuration.
        options: See `EnginesOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        One entry for each engine, and a verdict.

    Raises:
        UsageError: There are no facts on the engine, it can't be run, or the version is invalid.
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
    engine, run, python = options.pop("engine", None), options.pop("run", False), options.pop("python", None)
    if engine is not None:
        engine = read_engine(engine)
    _check_run(engine, run=run, python=python)
    checkpoint = examine("inspect", make_request(reference, options), progress, takes_class=True)
    if run:
        found = engines_for(checkpoint, engine)
        found = replace(found, engines=tuple(_run_heads(found, checkpoint, python, progress)))
    # It answers if it's on this machine and its answer depends on nothing but the configuration.
    elif (
        engine in ASKED
        and (python is not None or facts_on(engine).installed_version())
        and is_for_resolution(checkpoint.report, checkpoint.manifest)
    ):
        found = _judge_resolved(engine, python, checkpoint, progress)
    else:
        found = engines_for(checkpoint, engine)
    return Engines(**fields_of(found))


def _check_run(engine: str | None, *, run: bool, python: str | None) -> None:
    """Checks that the options of a run fit each other and the engine. Raises UsageError."""
    name, version = named_engine(engine or "")
    if python is not None and not name:
        raise UsageError("an interpreter was given without the engine that it has", "add --engine NAME")
    if python is not None and not run and name not in ASKED:
        raise UsageError(f"{name} resolves nothing without weights", "add --run")
    if run and version:
        raise UsageError(f"{engine} names a version, and a run is of the installed one", f"write --engine {name}")
    if run and name:
        find_runner(name)


def _judge_resolved(
    engine: str, python: str | None, checkpoint: Checkpoint, progress: Progress | None
) -> EnginesReport:
    """Lets an engine resolve the configuration, and reports its head from the facts on its installed version."""
    if progress is not None:
        progress(f"{engine} resolves config.json")
    resolution = resolve_with_engine(engine, checkpoint.manifest.config, python)
    found = engines_for(checkpoint, f"{engine}@{resolution.version}")
    return replace(found, engines=(_head_as_resolved(found.engines[0], resolution),))


def _head_as_resolved(cited: EngineHead, found: Resolution) -> EngineHead:
    """Adds to the entry of an engine what its own resolution shows; `cited` is of the same version.

    That an engine takes a configuration doesn't show that it loads the weights, or which head it computes.
    """
    source = f"{cited.title} {found.version}, which resolved config.json without weights"
    if found.error:
        refused = replace(
            cited, runs=False, same_head=None, formula="", activation=None, same_activation=None, notes=()
        )
        return replace(refused, evidence=EngineEvidence.ASKED, source=source, reason=found.error)
    told = f"it resolves config.json to {found.implementation}, pooling {found.positions}, in {found.dtype} here"
    kept = replace(cited, dtype=f"{found.dtype} on this machine", notes=(*cited.notes, f"{told[0].upper()}{told[1:]}."))
    if cited.evidence is not None:
        return kept
    reason = f"{cited.reason}; {told}, and only --run shows the head"
    return replace(kept, positions=found.positions, evidence=EngineEvidence.ASKED, source=source, reason=reason)


def _run_heads(
    found: EnginesReport, checkpoint: Checkpoint, python: str | None, progress: Progress | None
) -> Iterator[EngineHead]:
    """Replaces each entry by the result of a run; an entry that can't be run stays, with a note that says why."""
    from headscope.shared.serving.engine_runs import engine_trial

    tell = progress or (lambda sentence: None)
    with engine_trial(checkpoint) as trial:
        for cited in found.engines:
            if cited.engine not in runner_names():
                yield cited
                continue
            tell(f"running {cited.title} on a random copy")
            try:
                ran = trial.head(cited, python)
                if ran.runs and checkpoint.manifest.sentence is not None and cited.activation is not None:
                    # The copy has none of the files in which sentence-transformers keeps the activation.
                    ran = replace(
                        ran, activation=cited.activation, same_activation=cited.same_activation,
                        is_constant=cited.is_constant,
                    )  # fmt: skip
                yield ran
            except Unsupported as err:
                if found.is_one:  # the user named this engine, so a note would hide the failure
                    raise
                yield replace(cited, notes=(*cited.notes, f"Not run: {err.message}."))
