"""`verify_save`: what a save wrote, against the live model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from headscope.checks.given import read_selection
from headscope.checks.options import RuleOptions
from headscope.checks.rules import Selection
from headscope.checks.rules.saved import COMMAND
from headscope.checks.trial_process import beside_fresh_load
from headscope.core.checkpoints.contents.adapter import ADAPTER_CONFIG
from headscope.core.facts import Gap, Report
from headscope.core.facts.counting import few_of
from headscope.core.facts.stored.checkpoint import CONFIG
from headscope.core.facts.stored.location import HubOptions, Location
from headscope.core.source.request import ModuleRequest, Request, is_in_memory
from headscope.errors import HeadscopeError, UsageError
from headscope.shared.loaded.facts import ModelComparison, SavedModel, ScoreComparison
from headscope.shell.options.calls import use_case
from headscope.shell.options.checkpoint import RunOptions
from headscope.shell.values import options_of
from headscope.slices.loaded.options import SaveOptions
from headscope.slices.loaded.run import Verified, judged, notes_on_scores

if TYPE_CHECKING:
    from torch import nn

    from headscope.shared.loaded.head_memory import HeadMemory


@use_case
def verify_save(
    model: nn.Module,
    folder: str | PathLike[str],
    *,
    head: bool = False,
    reload: bool = True,
    **options: Unpack[SaveOptions],
) -> Verified:
    """Compares what a save wrote with the live model: call it right after the save.

    Args:
        model: The model that was saved, wrapped or not. It stays untouched.
        folder: What the save wrote: a folder of `save_pretrained`, `Trainer.save_model`, PEFT, sentence-transformers or
            Accelerate (`save_model`, `save_state`), or one weight file, such as a `.ckpt` of Lightning.
        head: Read only the values of the head; the other tensors are looked up by their names and shapes. Default:
            every value is read. The save of an adapter is always compared whole.
        reload: Load the save in a fresh process and compare its scores with those of the model, on random inputs. Not
            with `head`, and only for what `from_pretrained` loads as a class of Transformers.
        options: See `SaveOptions`.

    Returns:
        The verdict, the findings, and each tensor that was compared with its status.

    Raises:
        UsageError: An option is unknown or has an invalid value, or `model` is not a model in memory.
        HeadscopeError: The save can't be read.

    Example:
        >>> import headscope
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> model = BertForSequenceClassification(BertConfig(hidden_size=24, num_hidden_layers=1, vocab_size=99))
        >>> model.save_pretrained("trained")
        >>> headscope.verify_save(model, "trained").verdict
        <Verdict.PASSED: 'passed'>
        >>> model.bert.save_pretrained("without-head")
        >>> headscope.verify_save(model, "without-head").findings[0].id
        'HS711'
    """
    if not is_in_memory(model):
        raise UsageError(
            f"verify_save takes a model in memory, and got {str(model)[:80]!r}",
            "headscope.verify loads a checkpoint and compares it",
        )
    from headscope.shared.loaded.head_memory import every_tensor, remember_head

    rules = options_of(RuleOptions, options)
    model_options = {name: value for name, value in options.items() if name not in rules}
    if model_options.get("loaded_from") is not None:
        model_options["loaded_from"] = str(model_options["loaded_from"])
    selection = selection_of_saves(**rules)
    # The save of an adapter leaves the other tensors to a base checkpoint, so the model is compared with that too.
    is_adapter = Path(folder).is_dir() and any(Path(folder).glob("**/adapter_config.json"))
    report, why = _try_to_inspect(model, is_adapter=is_adapter, options=model_options)
    memory = remember_head(model, report, watches=False) if report is not None else None
    watch = SaveWatch(memory or every_tensor(model), selection, head)
    notes = () if memory else (f"every tensor was compared, because the head could not be traced: {why}",)
    offline = bool(model_options.get("offline"))
    return watch.compare(model, Path(folder), notes=notes, reloads=reload and not head, offline=offline)


def selection_of_saves(**rules: Unpack[RuleOptions]) -> Selection:
    """Reads which rules on saves the options select. Raises UsageError for unknown rules."""
    return read_selection(**rules, command=COMMAND)


def _try_to_inspect(model: Any, *, is_adapter: bool, options: Mapping[str, Any]) -> tuple[Report | None, str]:
    """Inspects a model; gives None and the reason if its head can't be traced."""
    from headscope.core.source.live.live_model import LiveModel
    from headscope.slices.inspect.live import inspect_module

    own = options_of(RunOptions, options)
    try:
        return (
            inspect_module(model, ModuleRequest(**options))
            if is_adapter
            else LiveModel(model, ModuleRequest(**own)).own_report
        ), ""
    except HeadscopeError as err:
        return None, err.message


@dataclass(frozen=True, slots=True)
class SaveWatch:
    """Head of a model, recorded once, and the rules on its saves; `head_only` is `head` of `verify_save`."""

    memory: HeadMemory
    selection: Selection
    head_only: bool = False

    def compare(
        self, model: Any, folder: Path, *, steps_behind: int = 0, notes: tuple[str, ...] = (), reloads: bool = False,
        offline: bool = False,
    ) -> Verified:  # fmt: skip
        """Compares a save with the live model. Raises a HeadscopeError if the save can't be read.

        With `reloads`, the save is loaded in a fresh process, and its scores are compared; `offline` looks for an
        adapter's base model on this machine alone.
        """
        from headscope.shared.loaded.saving import compare_with_save

        compared = compare_with_save(model, folder, self.memory, steps_behind=steps_behind, head_only=self.head_only)
        if reloads and not steps_behind:  # an older save has other scores than the model
            scores = _score_reload(model, folder, offline=offline)
            compared = replace(compared, subject=replace(compared.subject, scores=scores))
            # Right after a training, any model is in train mode.
            notes = (*notes, *notes_on_scores(replace(scores, in_train_mode=False)))
        return self._judge_save(replace(compared, notes=notes))

    def moves(self, optimizer: Any, accepted: frozenset[str] = frozenset()) -> Verified:
        """Reports what training did to the head; parameters in `accepted` may have stayed as they were."""
        from headscope.shared.loaded.head_memory import moves_since

        name = type(self.memory.unwrapped.module).__name__
        moves = moves_since(self.memory, optimizer)
        counted = tuple(move for move in moves if move.still is None or move.name not in accepted)
        unseen = [name for name in self.memory.names if name not in self.memory.digests]
        gaps = (Gap(few_of(unseen), "no process holds all its values"),) if unseen else ()
        told = tuple(
            f"{move.name} was trained: its norm went from {move.norm_before:.4g} to {move.norm_after:.4g}"
            if move.still is None
            else f"{move.name} did not train: {move.still.value}"
            for move in moves
        )
        return self._judge_save(ModelComparison(SavedModel("the trained model", name, moves=counted), told, gaps))

    def _judge_save(self, compared: ModelComparison) -> Verified:
        return judged(compared, self.selection, command="verify-save", loader="memory")


def _score_reload(model: Any, folder: Path, *, offline: bool) -> ScoreComparison:
    """Compares the scores of a live model with those of its save, loaded in a fresh process."""
    names = {item.name for item in folder.iterdir()} if folder.is_dir() else set()
    if CONFIG not in names and ADAPTER_CONFIG not in names:
        return ScoreComparison(reason="from_pretrained does not load such a save")
    place = Location(str(folder), hub=HubOptions(offline=offline))
    found = beside_fresh_load(model, Request(place, cache=False))
    if CONFIG not in names and found.fresh_error:  # the base model may be nowhere but in memory
        return replace(found, fresh_error="", reason=f"the adapter can't be loaded again: {found.fresh_error}")
    return found
