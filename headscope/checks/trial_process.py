"""The run of a checkpoint in a separate process, and what comes of it, whatever ends that process."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from headscope.checks.evidence.gathering import state_of_files
from headscope.core.facts.stored.location import HubOptions
from headscope.core.facts.trial import RunTrial
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.source.request import Progress, Request
from headscope.core.source.storage.cache import open_cache
from headscope.core.workers import Worker, WorkerEnded
from headscope.errors import HeadscopeError
from headscope.shared.loaded.facts import ScoreComparison
from headscope.shared.trial.deciding import too_large, why_not_run

if TYPE_CHECKING:
    from torch import nn

_Result = TypeVar("_Result")
_SECONDS, _BYTES_A_SECOND = 180.0, 20_000_000
"""Time limit of a run: seconds for the calls, and the speed of a slow disk for the load."""


class TrialProcess:
    """A process for one run. It may import PyTorch and Transformers while this process examines the checkpoint."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._warming: threading.Thread | None = None

    def __enter__(self) -> TrialProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.end()
        if self._warming is not None:
            self._warming.join()

    def begin(self) -> None:
        """Starts the process, which begins to import PyTorch; does nothing if it runs already."""
        if self._worker is None:
            self._worker = Worker(subprocess.DEVNULL)  # libraries print there, and nobody reads it
            self._warming = threading.Thread(target=self._import_ahead, args=(self._worker,), daemon=True)
            self._warming.start()

    @staticmethod
    def _import_ahead(worker: Worker) -> None:
        with suppress(Exception):  # the later call of the run reports what is wrong
            worker.call(import_libraries)

    def run(self, checkpoint: Checkpoint, tell: Progress) -> RunTrial | str:
        """Loads and calls the model, or takes the result from the cache if no file has changed.

        Returns the reason as a text if the model could not be run. Raises UsageError or Unsupported for a device that
        isn't there.
        """
        request = checkpoint.request
        reason = why_not_run(checkpoint)
        if reason:
            return reason
        if request.run_device != "cpu":
            from headscope.core.model.loading.inference import check_device

            check_device(request.run_device, runs_weights=True)
        cache = open_cache(request.cache and bool(checkpoint.key) and request.run_device == "cpu")
        key = f"{checkpoint.key}{state_of_files(checkpoint)}" if cache.is_open else ""
        known = cache.load(RunTrial, key)
        if known is not None:
            return known
        tell("loading the model and calling it")
        found = self._run_in_worker(checkpoint)
        # A failed load is not kept: this machine's memory or packages may be the cause, and both can change.
        if isinstance(found, RunTrial) and found.scope.inputs:
            cache.save(key, found)
        return found

    def _run_in_worker(self, checkpoint: Checkpoint) -> RunTrial | str:
        from headscope.shared.trial.opening import run_checkpoint

        self.begin()
        assert self._worker is not None
        assert self._warming is not None
        self._warming.join()  # a worker answers one call at a time, and the import is one
        request = checkpoint.request
        hub = request.location.hub
        quiet_hub = HubOptions(cache_dir=hub.cache_dir, token=hub.token, offline=hub.offline)
        plain = replace(request, location=replace(request.location, hub=quiet_hub), cache=False, prove=False)
        size = checkpoint.manifest.bytes_total
        return _call_worker(self._worker, size, run_checkpoint, plain, request.run_device)


def _call_worker(worker: Worker, size: int, function: Callable[..., _Result], *arguments: object) -> _Result | str:
    """Calls a function in the process, within the time that a checkpoint of `size` bytes may take.

    Returns the reason as a text if the call gives no result.
    """
    seconds = _SECONDS + size / _BYTES_A_SECOND
    try:
        return worker.call(function, *arguments, seconds=seconds)
    except TimeoutError:
        return f"it took more than {seconds:.0f} seconds"
    except WorkerEnded as err:
        how = f"signal {-err.code}" if err.code < 0 else f"exit code {err.code}"
        return f"the process that ran it was ended by {how}: a crash of a library, or too little memory"
    except HeadscopeError as err:
        return err.message


def beside_fresh_load(module: nn.Module, request: Request) -> ScoreComparison:
    """Compares the scores of a model in memory with those of its checkpoint, loaded in a fresh process."""
    from headscope.shared.loaded.scores import compared_scores, score_checkpoint, scored

    own = scored(module)
    if isinstance(own, str):
        return ScoreComparison(reason=own)
    size = sum(item.numel() * item.element_size() for item in module.parameters())
    reason = too_large(size)
    if reason:
        return ScoreComparison(reason=f"a second load needs memory: {reason}")
    with Worker(subprocess.DEVNULL) as worker:
        found = _call_worker(worker, size, score_checkpoint, request, own.rows, own.dtype)
    if isinstance(found, str):
        return ScoreComparison(reason=found, in_train_mode=own.in_train_mode)
    if isinstance(found, Exception):
        return ScoreComparison(fresh_error=str(found), in_train_mode=own.in_train_mode)
    return compared_scores(own, found)


def import_libraries() -> None:
    """Imports what a run needs, in the process that will run it."""
    import headscope.shared.trial.opening  # noqa: F401
