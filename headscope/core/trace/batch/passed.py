"""Probe batches as PEFT passes them to the model inside: virtual tokens before the tokens of each text."""

from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from headscope.core.facts import Task
from headscope.core.trace.batch.probe_batch import ProbeBatch, build_probe
from headscope.core.upstream.optional.peft_prompts import PromptCaller
from headscope.errors import Unsupported


def passed_probe(caller: PromptCaller, model: PreTrainedModel, task: Task, *sizes: Any, **options: Any) -> ProbeBatch:
    """Builds a probe as it reaches the forward of `model` when PEFT is called with it.

    Raises Unsupported where PEFT raises.
    """
    probe = build_probe(model, task, *sizes, ahead=caller.ahead, **options)
    return pass_on(caller, probe) if caller.ahead else probe


def pass_on(caller: PromptCaller, probe: ProbeBatch) -> ProbeBatch:
    """Turns a probe for PEFT's model into one for the model inside; its sizes and rows count the virtual tokens
    already.

    Raises Unsupported where PEFT raises.
    """
    try:
        passed = caller.passed_inputs({**probe.inputs, **probe.labels})
    except Exception as err:  # whatever PEFT raises
        raise Unsupported(f"PEFT raises {type(err).__name__}: {err}", "") from err
    labels = {name: passed.pop(name) for name in probe.labels if name in passed}
    return replace(probe, inputs=passed, labels=labels)
