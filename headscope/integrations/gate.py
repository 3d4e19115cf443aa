"""The gate around a training: the rules before the first step, on each save, and at the end."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args

from headscope.api import Verified, check
from headscope.checks.facts import CheckResult
from headscope.checks.rules import named_in
from headscope.checks.rules.saved import COMMAND
from headscope.checks.screen import failure_sentence, verdict_line
from headscope.core.facts.stored.states import error_line
from headscope.core.facts.verdict import Verdict
from headscope.errors import CheckFailed, HeadscopeError, UsageError, first_line
from headscope.shell.options.calls import check_names
from headscope.slices.loaded.save_verification import SaveWatch, selection_of_saves
from headscope.slices.loaded.screen import save_sentence

if TYPE_CHECKING:
    from headscope.core.facts import Report

LOG = logging.getLogger("headscope")
Reaction = Literal["raise", "warn"]
_RULES_ON_FROZEN = ("HS601", "HS602")
"""Rules of `check` on parameters that training will leave as they are."""


class GateOptions(TypedDict, total=False):
    """Options of the callbacks.

    `on_fail` and `on_undetermined` are `raise` (default for failures) or `warn`; `select` and `ignore` are as for
    `headscope.check`, and so are `loaded_from`, `loading_info` and `example_inputs`. `verify_saves` compares each save
    (default), only its head (`"head"`), or none; with `"reload"` each is also loaded in a fresh process, which
    `Trainer`'s callback otherwise does once, at the end. `stop_at_bad_save` raises CheckFailed immediately for a bad
    one.
    """

    on_fail: Reaction
    on_undetermined: Reaction
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    loaded_from: str | None
    loading_info: Mapping[str, Any] | None
    example_inputs: Any
    verify_saves: bool | Literal["head", "reload"]
    stop_at_bad_save: bool


_DEFAULTS: GateOptions = {
    "on_fail": "raise",
    "on_undetermined": "warn",
    "select": (),
    "ignore": (),
    "verify_saves": True,
    "stop_at_bad_save": False,
}
_OF_CHECK = ("loaded_from", "loading_info", "example_inputs")


class TrainingGate:
    """Options and results of a callback: `check` before the first step, then `verify_save`.

    `saves` holds the result for each save, `trained` what training did to the head.
    """

    def __init__(self, **given: Unpack[GateOptions]) -> None:
        """Raises UsageError for an unknown option or reaction."""
        check_names(given, tuple(GateOptions.__annotations__))
        options: GateOptions = {**_DEFAULTS, **given}
        for reaction in (options["on_fail"], options["on_undetermined"]):
            if reaction not in get_args(Reaction):
                raise UsageError(f"no such reaction: {reaction}", f"reactions: {', '.join(get_args(Reaction))}")
        self.result: CheckResult | None = None
        self.saves: tuple[Verified, ...] = ()
        self.trained: Verified | None = None
        self._reactions = {Verdict.FAILED: options["on_fail"], Verdict.NOT_DETERMINED: options["on_undetermined"]}
        self._rules, self._ignore = tuple(options["select"]), tuple(options["ignore"])
        self._of_saves = named_in(COMMAND, self._rules)
        self._verify_saves = bool(options["verify_saves"]) and not (self._rules and not self._of_saves)
        self._head_only = options["verify_saves"] == "head"
        self._reloads = options["verify_saves"] == "reload"
        self._stop = options["stop_at_bad_save"]
        self._options: dict[str, Any] = {name: value for name, value in given.items() if name in _OF_CHECK}
        self._watch: SaveWatch | None = None
        self._unread: list[str] = []

    def begin(self, model: Any, optimizer: Any) -> None:
        """Runs `check` on the model, and records its head. Raises CheckFailed if a reaction asks for it."""
        self.result, self.saves, self.trained, self._watch, self._unread = None, (), None, None, []
        try:
            own = tuple(name for name in self._rules if name not in self._of_saves or named_in("check", (name,)))
            # If only rules on saves were selected, HS601 runs for the trace, which the saves need.
            asked = own or (("HS601",) if self._rules else ())
            self.result = check(
                model, "training", select=asked, ignore=self._ignore, optimizer=optimizer, **self._options
            )
            line, sentence = verdict_line(self.result), failure_sentence(self.result)
        except (Exception, SystemExit) as err:  # with on_fail="warn", no failure here may end a training
            if self._ends_training(err):
                raise
            LOG.warning("headscope could not examine the model: %s", sentence_on(err))
            return
        if self._verify_saves:
            self._record_head(model, self.result.report)
        self._react_to_verdict(self.result.verdict, line, sentence)

    def _record_head(self, model: Any, report: Report | None) -> None:
        """Records the head as it is now; if that fails, logs a warning, and saves stay unverified."""
        from headscope.shared.loaded.head_memory import remember_head

        try:
            memory = remember_head(model, report) if report is not None else None
            if memory is not None:
                self._watch = SaveWatch(
                    memory, selection_of_saves(select=self._of_saves, ignore=self._ignore), self._head_only
                )
        except UsageError:  # a mistake in the options, which the user can correct before the first step
            raise
        except Exception as err:  # a training does not end because its saves can't be verified
            LOG.warning("headscope could not record the head: %s", sentence_on(err))

    def saved(self, model: Any, folder: Path | None, *, steps_behind: int = 0, is_last: bool = False) -> None:
        """Compares a save with the live model and logs what is wrong; raises only if a bad save is to stop training.

        The last one is loaded in a fresh process, and its scores are compared.
        """
        if not self._verify_saves:
            return
        if self._watch is None:
            self._not_read("headscope could not verify the save: the head is not known")
            return
        if folder is None:
            self._not_read("headscope could not verify the save: its folder was not found")
            return
        try:
            reloads = (is_last or self._reloads) and not self._head_only
            result = self._watch.compare(model, folder, steps_behind=steps_behind, reloads=reloads)
            sentence = save_sentence(result)
        except Exception as err:  # a training does not end because a save can't be verified
            self._not_read(f"headscope could not verify the save in {folder}: {sentence_on(err)}")
            return
        self.saves = (*self.saves, result)
        LOG.log(_level_of(result), "%s", sentence)
        if self._stop and result.verdict is Verdict.FAILED:
            raise CheckFailed(sentence, _HINT)

    def _not_read(self, sentence: str) -> None:
        self._unread.append(sentence)
        LOG.warning("%s", sentence)

    def end(self, optimizer: Any, *, has_trained: bool = True) -> None:
        """Says whether the head was trained, and raises CheckFailed for that or for a bad save."""
        if not self._verify_saves:
            return
        if self._watch is not None and has_trained:
            self._look_at_moves(self._watch, optimizer)
        results = [*self.saves, *([self.trained] if self.trained else [])]
        failed = [save_sentence(item) for item in results if item.verdict is Verdict.FAILED]
        if failed and self._reactions[Verdict.FAILED] == "raise":
            raise CheckFailed("\n".join(dict.fromkeys(failed)), _HINT)
        unsure = [save_sentence(item) for item in results if item.verdict is Verdict.NOT_DETERMINED]
        unsure += self._unread
        if unsure and self._reactions[Verdict.NOT_DETERMINED] == "raise":
            raise CheckFailed("\n".join(dict.fromkeys(unsure)), _HINT)

    def _look_at_moves(self, watch: SaveWatch, optimizer: Any) -> None:
        ignored = [item.finding for item in self.result.ignored] if self.result else []
        # These may stay as they are: the finding on them at the start was ignored.
        accepted = {name for item in ignored if item.id in _RULES_ON_FROZEN for name in item.parameters}
        try:
            self.trained = watch.moves(optimizer, frozenset(accepted))
        except Exception as err:  # a training does not end because its head can't be compared
            self._not_read(f"headscope could not tell whether the head was trained: {sentence_on(err)}")
            return
        LOG.log(_level_of(self.trained), "%s", save_sentence(self.trained))

    def _react_to_verdict(self, verdict: Verdict, line: str, text: str) -> None:
        is_quiet = LOG.isEnabledFor(logging.WARNING) and not LOG.isEnabledFor(logging.INFO)
        # Python logs only warnings by default, and users should see that the check ran.
        if verdict is Verdict.PASSED and is_quiet and sys.stderr is not None:
            print(line, file=sys.stderr)
        LOG.info("%s", text)
        reaction = self._reactions.get(verdict)
        if reaction == "raise":
            raise CheckFailed(text, "run headscope explain ID for details; on_fail='warn' trains anyway")
        if reaction == "warn":
            LOG.warning("%s", text)

    def _ends_training(self, err: BaseException) -> bool:
        """True if a failure of the check itself ends the training, as the reactions say."""
        if self._reactions[Verdict.FAILED] == "warn":
            return False
        # A wrong option or a bug is not "could not be determined", so on_undetermined doesn't cover it.
        is_gap = isinstance(err, HeadscopeError) and not isinstance(err, UsageError)
        return not is_gap or self._reactions[Verdict.NOT_DETERMINED] == "raise"


_HINT = "run headscope explain ID for details; on_fail='warn' logs a warning instead"


def _level_of(result: Verified) -> int:
    return logging.INFO if result.verdict is Verdict.PASSED and not result.findings else logging.WARNING


def sentence_on(err: BaseException) -> str:
    """Gives an error in one line."""
    if isinstance(err, HeadscopeError):
        return error_line(err)
    return f"{type(err).__name__}: {first_line(err)}" if str(err).strip() else type(err).__name__
