"""PEFT: its calls of the model inside where an adapter gives that virtual tokens."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any

import torch

from headscope.core.upstream.peft import settings_in, why_peft_not_run, wrapped_empty
from headscope.core.upstream.torch import on_meta
from headscope.errors import Unsupported


class Uncalled(Unsupported):
    """Raised where PEFT can't be run to see how it calls the model."""


class _Reached(Exception):
    """Raised in the forward of the model inside, to end PEFT's call there."""


@dataclass(frozen=True, slots=True)
class PromptCaller:
    """PeftModel whose adapter gives the model inside virtual tokens, and how it calls that model.

    `base` is the model inside. `ahead` is how many positions PEFT puts before those of a text: 0 where the virtual
    tokens are keys and values, which make no hidden states.
    """

    wrapper: Any
    base: Any
    ahead: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the active adapter, as its file would hold them."""
        plain: dict[str, Any] = json.loads(json.dumps(self.wrapper.active_peft_config.to_dict(), default=str))
        return plain

    @property
    def read_before(self) -> tuple[str, ...]:
        """Parameters of the model inside that PEFT reads before it passes embeddings to that model."""
        read = {id(item) for item in self.wrapper.word_embeddings.parameters()} if self.ahead else set()
        return tuple(name for name, item in self.base.named_parameters() if id(item) in read)

    def passed_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Gives the arguments that reach the forward of the model inside; {} if PEFT calls its parts instead.

        Raises whatever PEFT raises.
        """
        passed: dict[str, Any] = {}

        @wraps(self.base.forward)  # PEFT looks at the signature
        def catch(**arguments: Any) -> None:
            passed.update(arguments)
            raise _Reached

        device = next(self.base.parameters()).device
        unchanged = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with suppress(_Reached), _with_forward(self.base, catch), torch.no_grad(), unchanged:
            self.wrapper(**self.with_task(inputs))
        return {name: value for name, value in passed.items() if value is not None}

    def take_calls(self) -> None:
        """Sends every later call of the model inside to PEFT's model."""
        own = self.base.forward

        def call_wrapper(**inputs: Any) -> Any:
            with _with_forward(self.base, own):
                return self.wrapper(**self.with_task(inputs))

        self.base.forward = wraps(own)(call_wrapper)

    def set_first_task(self) -> None:
        """Makes later calls of PEFT's model without a task use the first task."""
        own = self.wrapper.forward
        self.wrapper.forward = wraps(own)(lambda **inputs: own(**self.with_task(inputs)))

    @contextmanager
    def taking_calls(self) -> Iterator[None]:
        """Does what `take_calls` does for the length of a block; virtual tokens that are inputs are passed instead."""
        if self.ahead:
            yield
            return
        with _with_forward(self.base, self.base.forward):
            self.take_calls()
            yield

    def with_task(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Adds the first task to the inputs where the adapter has several: PEFT has no default for it."""
        if "task_ids" not in signature(self.wrapper.forward).parameters or "input_ids" not in inputs:
            return dict(inputs)
        ids = inputs["input_ids"]
        return {"task_ids": ids.new_zeros(len(ids)), **inputs}


@contextmanager
def _with_forward(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Gives a module another forward inside."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before


def caller_of(wrapper: Any) -> PromptCaller | None:
    """Finds how a PeftModel calls the model inside; None where its active adapter gives that no virtual tokens."""
    if not getattr(getattr(wrapper, "active_peft_config", None), "is_prompt_learning", False):
        return None
    caller = PromptCaller(wrapper, wrapper.get_base_model())
    device = next(caller.base.parameters()).device
    ids = torch.zeros(1, 2, dtype=torch.long, device="cpu" if device.type == "meta" else device)
    passed: Mapping[str, Any] = {}
    with suppress(Exception):  # whatever PEFT raises, it raises in the run that follows
        passed = caller.passed_inputs({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    embedded = passed.get("inputs_embeds")
    return caller if embedded is None else PromptCaller(wrapper, caller.base, embedded.shape[1] - ids.shape[1])


_OF_THE_BASE = ("token_dim", "num_layers", "num_attention_heads")
"""Sizes of the base model in the settings of an adapter, which PEFT reads from that model where they are missing."""


def caller_in_copy(model: Any, config: Mapping[str, Any]) -> PromptCaller | None:
    """Does what `caller_with` does for a copy of the model, which is made only where there are virtual tokens."""
    return caller_with(model, config, make_subject=deepcopy)


def caller_with(
    model: Any,
    config: Mapping[str, Any],
    *,
    is_reduced: bool = False,
    make_subject: Callable[[Any], Any] = lambda model: model,
) -> PromptCaller | None:
    """Finds how PEFT calls a model with an untrained adapter; None if its configuration gives no virtual tokens.

    What `make_subject` makes of the model is changed in its forward only. `is_reduced` says that it is smaller than the
    adapter's base model. Raises Uncalled where PEFT isn't installed or refuses.
    """
    try:
        if not config or why_peft_not_run(config) or not settings_in(config).is_prompt_learning:
            return None
        model = make_subject(model)
        fitting = {name: value for name, value in config.items() if not (is_reduced and name in _OF_THE_BASE)}
        is_empty = next(model.parameters()).is_meta
        with on_meta() if is_empty else nullcontext():
            wrapped = wrapped_empty(model, fitting)
    except Exception as err:  # whatever PEFT raises, or that it is not installed
        if "num_virtual_tokens" not in config:
            return None
        raise Uncalled(f"PEFT raises {type(err).__name__}: {' '.join(str(err).split())[:300]}", "") from err
    for path, part in list(model.named_modules()):
        if hasattr(part, "original_module"):  # so that the modules saved whole keep their names
            model.set_submodule(path, part.original_module)
    return caller_of(wrapped)
