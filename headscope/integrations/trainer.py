"""`HeadscopeCallback`: the training profile of `headscope check` on the live model, before the first step."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal, get_args

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from headscope.api import check
from headscope.errors import CheckFailed, HeadscopeError, UsageError
from headscope.facts.check import CheckResult, Verdict
from headscope.render.check import failure_sentence

_LOG = logging.getLogger("headscope")
Reaction = Literal["raise", "warn"]


class HeadscopeCallback(TrainerCallback):
    """Asks the rules of `headscope check --for training` once, when training begins, on the main process.

    `on_fail` and `on_undetermined` are `raise` or `warn`. If headscope cannot examine the model at all, that counts as
    undetermined; with `on_fail="warn"` it is always a logged warning, and training goes on. `rules` and `ignore` as for
    `headscope.check`; `loading_info` is what `from_pretrained(..., output_loading_info=True)` returned: with it nothing
    has to be read again. Without it `loaded_from` names the checkpoint, where the model does not remember it. The model
    is left as it is. `result` holds what the rules said. Raises CheckFailed before the first step.

    >>> trainer = Trainer(model, args, callbacks=[HeadscopeCallback()])  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        on_fail: Reaction = "raise",
        on_undetermined: Reaction = "warn",
        rules: tuple[str, ...] = (),
        ignore: tuple[str, ...] = (),
        loaded_from: str | None = None,
        loading_info: Mapping[str, Any] | None = None,
        example_inputs: Any = None,
    ) -> None:
        for reaction in (on_fail, on_undetermined):
            if reaction not in get_args(Reaction):
                raise UsageError(f"no such reaction: {reaction}", f"reactions: {', '.join(get_args(Reaction))}")
        self.result: CheckResult | None = None
        self._reactions = {Verdict.FAILED: on_fail, Verdict.NOT_DETERMINED: on_undetermined}
        self._rules = rules
        self._ignore = ignore
        self._options: dict[str, Any] = {
            "loaded_from": loaded_from,
            "loading_info": loading_info,
            "example_inputs": example_inputs,
        }

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Asks the rules; called by the trainer."""
        if not state.is_world_process_zero:
            return
        self.result = None
        try:
            self.result = self._check(given)
            sentence = failure_sentence(self.result)
        except (Exception, SystemExit) as err:  # whatever it is, a run that is only to be warned goes on
            if self._aborts(err):
                raise
            _LOG.warning("headscope could not examine the model: %s", _sentence(err))
            return
        self._react(self.result.verdict, sentence)

    def _react(self, verdict: Verdict, text: str) -> None:
        _LOG.info("%s", text)
        reaction = self._reactions.get(verdict)
        if reaction == "raise":
            raise CheckFailed(text, "headscope explain ID tells more; on_fail='warn' trains all the same")
        if reaction == "warn":
            _LOG.warning("%s", text)

    def _check(self, given: Mapping[str, Any]) -> CheckResult:
        return check(
            given["model"],
            "training",
            rules=self._rules,
            ignore=self._ignore,
            optimizer=given.get("optimizer"),
            **self._options,
        )

    def _aborts(self, err: BaseException) -> bool:
        """Whether a failure of the check itself ends the training: not where a warning was asked for."""
        if self._reactions[Verdict.FAILED] == "warn":
            return False
        is_gap = isinstance(err, HeadscopeError) and not isinstance(err, UsageError)
        return not is_gap or self._reactions[Verdict.NOT_DETERMINED] == "raise"


def _sentence(err: BaseException) -> str:
    if isinstance(err, HeadscopeError):
        return f"{err.message} ({err.hint})" if err.hint else err.message
    lines = str(err).strip().splitlines()
    return f"{type(err).__name__}: {lines[0]}" if lines else type(err).__name__
