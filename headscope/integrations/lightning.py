"""`HeadscopeCallback` for Lightning: `headscope check` before the first step, and `verify_save` on each `.ckpt`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.integrations.gate import TrainingGate

if TYPE_CHECKING:
    import torch


class Hooks(TrainingGate):
    """Runs `headscope check --for training` once, when training begins; then verifies each checkpoint, on rank zero.

    The options and the attributes `result`, `saves` and `trained` are those of the callback for `transformers.Trainer`.
    Lightning tells no callback when a file is written: a checkpoint is compared before the next step begins, or when
    the fit ends. For `trainer.save_checkpoint(path)` call `headscope.verify_save(module, path)`.

    >>> trainer = Trainer(callbacks=[HeadscopeCallback()])  # doctest: +SKIP
    """

    _first_step = 0
    _saved_at: int | None = None
    _is_written = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Runs the checks and records the head; called by Lightning."""
        if trainer.is_global_zero:
            self._first_step, self._saved_at, self._is_written = trainer.global_step, None, False
            self.begin(pl_module, _JoinedOptimizers(trainer.optimizers))

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Notes that a file is about to be written; called by Lightning."""
        if trainer.is_global_zero:
            self._saved_at, self._is_written = trainer.global_step, True

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Compares the file that was written since the last step; called by Lightning."""
        self._verify_written(trainer, pl_module)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Compares the last file with the trained head, and reports a head that did not train; called by Lightning."""
        if not trainer.is_global_zero:
            return
        self._verify_written(trainer, pl_module)
        behind = trainer.global_step - self._saved_at if self._saved_at is not None else 0
        keeps_best = any(getattr(item, "monitor", None) for item in trainer.checkpoint_callbacks)
        if behind and not keeps_best:  # a best checkpoint is older on purpose
            self.saved(pl_module, _newest_checkpoint(trainer), steps_behind=behind)
        self.end(_JoinedOptimizers(trainer.optimizers), has_trained=trainer.global_step > self._first_step)

    def _verify_written(self, trainer: Any, pl_module: Any) -> None:
        if self._is_written:
            self._is_written = False  # first, so that a save is compared once even if that raises
            self.saved(pl_module, _newest_checkpoint(trainer))


def _newest_checkpoint(trainer: Any) -> Path | None:
    """Finds the checkpoint that was written last; None if Lightning keeps checkpoints on another machine."""
    folders = {str(getattr(item, "dirpath", None) or "") for item in trainer.checkpoint_callbacks} - {""}
    files = [file for folder in folders for file in Path(folder).glob("*.ckpt")]
    return max(files, key=lambda file: file.stat().st_mtime_ns, default=None)


class _JoinedOptimizers:
    """Several optimizers with the attributes of one."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.param_groups = [group for item in optimizers for group in item.param_groups]
        self.state = {parameter: state for item in optimizers for parameter, state in item.state.items()}


if TYPE_CHECKING:
    HeadscopeCallback = Hooks
else:

    def __getattr__(name: str) -> type:
        """`HeadscopeCallback`, made on first use: only then is Lightning imported."""
        if name != "HeadscopeCallback":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Two packages hold the same library, each with its own class: the one that is in use is extended.
        names = ("lightning.pytorch", "pytorch_lightning")
        loaded = [package for package in names if package in sys.modules]
        there = loaded or [package for package in names if find_spec(package.partition(".")[0]) is not None]
        callback = import_module((there or names)[0]).Callback
        more = {"__doc__": Hooks.__doc__, "__module__": __name__}
        globals()[name] = made = type(name, (Hooks, callback), more)
        return made
