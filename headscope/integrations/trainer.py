"""`HeadscopeCallback`: `headscope check` on the live model before the first step, and `verify_save` on each save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from headscope.integrations.gate import TrainingGate


class HeadscopeCallback(TrainingGate, TrainerCallback):
    """Runs `headscope check --for training` once, when training begins, on the main process; then verifies each save.

    `on_fail` and `on_undetermined` are `raise` or `warn`. If headscope cannot examine the model at all, that counts as
    undetermined; with `on_fail="warn"` it is always a logged warning, and training goes on. `select` and `ignore` as
    for `headscope.check`; `loading_info` is what `from_pretrained(..., output_loading_info=True)` returned: with it
    nothing has to be read again. Without it `loaded_from` names the checkpoint, if the model does not record it. The
    model is left as it is. `result` holds what the rules said. Raises CheckFailed before the first step.

    With `verify_saves`, each `checkpoint-*` is read back and compared with the live model, as `headscope.verify_save`
    does (`verify_saves="head"` reads only the values of the head). At the end the last one is loaded in a fresh
    process and its scores are compared with the live ones (`verify_saves="reload"`: each), and headscope reports a head
    that training left as it was. Failures are logged immediately and raised as CheckFailed at the end of the training,
    or immediately with `stop_at_bad_save`. `saves` and `trained` hold the results.

    >>> trainer = Trainer(model, args, callbacks=[HeadscopeCallback()])  # doctest: +SKIP
    """

    _first_step = 0
    _folder: Path | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Runs the checks and records the head; called by the trainer."""
        if not state.is_world_process_zero:
            return
        self._first_step, self._folder = state.global_step, None
        self.begin(given["model"], given.get("optimizer"))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Compares the newest checkpoint with the live head; called by the trainer after it has written it."""
        if not state.is_world_process_zero:
            return
        self._folder = _folder_of(Path(str(args.output_dir)), state.global_step)
        self.saved(given["model"], self._folder)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Compares the last checkpoint with the trained head, and reports a head that did not train."""
        if not state.is_world_process_zero:
            return
        folder, behind = self._last_checkpoint(args, state)
        if folder is not None and folder.is_dir():
            self.saved(given["model"], folder, steps_behind=behind, is_last=True)
        self.end(given.get("optimizer"), has_trained=state.global_step > self._first_step)

    def _last_checkpoint(self, args: TrainingArguments, state: TrainerState) -> tuple[Path | None, int]:
        """Finds the checkpoint that should hold the model at the end, and how many steps older than the model it is."""
        # The trainer has loaded the best checkpoint into the model by now.
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            return Path(state.best_model_checkpoint), 0
        # With save_strategy="best", the last checkpoint is not meant to hold the last model.
        if self._folder is None or str(getattr(args.save_strategy, "value", args.save_strategy)) == "best":
            return None, 0
        number = self._folder.name.rpartition("-")[2]
        return self._folder, state.global_step - int(number) if number.isdigit() else 0


def _folder_of(output: Path, step: int) -> Path | None:
    """Finds the folder of the checkpoint of a step; None without one."""
    name = f"checkpoint-{step}"
    if (output / name).is_dir():
        return output / name
    # hyperparameter_search writes each trial into a folder `run-*`, and the newest is the one that runs.
    deeper = [folder for folder in output.glob(f"run-*/{name}") if folder.is_dir()]
    return max(deeper, key=lambda folder: folder.stat().st_mtime, default=None)
