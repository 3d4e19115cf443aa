"""The head as one line: `logits = out_proj(tanh(dense(h[<s>])))`."""

from collections import Counter
from dataclasses import dataclass

import torch

from headscope.facts import Pooling, PoolingKind
from headscope.trace.execution import Execution
from headscope.trace.slicing import HeadSlice
from headscope.trace.stages import ModelNames, Step, entering_tensors, is_silent

_PASSING = {
    "dropout", "dropout1d", "dropout2d", "alpha_dropout", "view", "reshape", "flatten", "squeeze", "unsqueeze",
    "transpose", "permute", "swapaxes", "expand", "movedim", "unflatten", "masked_fill",
    "index_put", "slice", "split", "chunk", "unbind",
}  # fmt: skip
_INFIX = {"add": " + ", "sub": " - ", "div": " / ", "mul": " * ", "matmul": " @ "}
_PICKS = {"select", "index", "gather", "take_along_dim"}
_LONGEST = 160


@dataclass(frozen=True, slots=True)
class _Writer:
    head: HeadSlice
    pooling: Pooling
    names: ModelNames
    short: dict[str, str]
    texts: dict[int, str]


def write_formula(execution: Execution, head: HeadSlice, steps: tuple[Step, ...], pooling: Pooling) -> str:
    """The formula of a head; "" where it would be too long to read."""
    names = ModelNames(execution.model)
    texts = {id(tensor): "h" for tensor in head.hidden}
    writer = _Writer(head, pooling, names, _short_names(steps, names), texts)
    picked = False
    for step in steps:
        text, picked = _expression(step, writer, picked)
        text = text if len(text) <= _LONGEST else "?"
        for operation in step.operations:
            for output in operation.outputs:
                texts[id(output)] = text
    scores = " ; ".join(dict.fromkeys(texts.get(id(tensor), "?") for tensor in execution.logits))
    formula = f"logits = {scores}"
    return formula if len(formula) <= _LONGEST and "?" not in formula else ""


def _short_names(steps: tuple[Step, ...], names: ModelNames) -> dict[str, str]:
    """Module paths by their last component, and whole where two of them end alike or in a number."""
    paths = {names.path(step.last) for step in steps if step.last.modules}
    ends = Counter(path.rpartition(".")[2] for path in paths)
    return {path: end if ends[end] == 1 and not end.isdigit() else path for path, end in _with_ends(paths)}


def _with_ends(paths: set[str]) -> list[tuple[str, str]]:
    return [(path, path.rpartition(".")[2]) for path in paths]


def _expression(step: Step, writer: _Writer, picked: bool) -> tuple[str, bool]:
    operands = [writer.texts.get(id(tensor), "?") for tensor in entering_tensors(step, writer.head)]
    inner = operands[0] if operands else "?"
    if is_silent(step) or step.name in _PASSING:
        return inner, picked
    if step.name in _PICKS:
        return (inner, True) if picked else (f"{inner}[{_token_text(step, writer.pooling)}]", True)
    if step.name in _INFIX:
        return (_infix(step.name, operands), picked) if len(operands) > 1 else (_scaled(step, inner), picked)
    if step.name == "cat":
        return f"[{'; '.join(operands)}]", picked
    return f"{_called(step, writer)}({', '.join(operands)})", picked


def _infix(name: str, operands: list[str]) -> str:
    return f"({_INFIX[name].join(operands)})"


def _scaled(step: Step, inner: str) -> str:
    """Multiplied by a mask or divided by a count: the mean that this is part of is said by its sum."""
    return inner if step.name in {"mul", "div"} else f"({inner}{_INFIX[step.name]}c)"


def _called(step: Step, writer: _Writer) -> str:
    path = writer.names.path(step.last)
    has_parameters = any(id(tensor) in writer.names.parameters for item in step.operations for tensor, _ in item.inputs)
    if has_parameters and path:
        return writer.short[path]
    if step.name == "sum" and _is_of_a_mean(writer.pooling):
        return "mean"
    return step.name


def _is_of_a_mean(pooling: Pooling) -> bool:
    """Whether a sum over the positions is divided by their number afterwards, alone or as one of several parts."""
    parts = pooling.rule.split(";") if pooling.kind is PoolingKind.CONCAT else ()
    return pooling.kind in {PoolingKind.MEAN, PoolingKind.MASKED_MEAN} or any("mean over" in part for part in parts)


def _token_text(step: Step, pooling: Pooling) -> str:
    index = _written_index(step)
    match pooling.kind:
        case PoolingKind.NONE | PoolingKind.CONCAT | PoolingKind.OTHER if index is not None:
            return index
        case PoolingKind.LAST_NON_PAD_TOKEN:
            return "last non-pad"
    return pooling.tokens[0].strip("[]") if pooling.tokens else "?"


def _written_index(step: Step) -> str | None:
    items = step.last.args[1] if len(step.last.args) > 1 else None
    items = items if isinstance(items, tuple) else (items,)
    return next((str(item) for item in items if isinstance(item, int)), None)


def hidden_of(head: HeadSlice) -> torch.Tensor | None:
    """The first of the hidden states that the head reads, or None."""
    return head.hidden[0] if head.hidden else None
