"""Stages of a head: its operations by PyTorch's names, with shapes, module, parameters and source line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from headscope.core.facts import Stage
from headscope.core.facts.heads.head import HIDDEN_STATES
from headscope.core.trace.record.indexing import INDEX_OPERATIONS, index_operation, spell_index
from headscope.core.trace.record.recorder import Exit, Guess, Operation
from headscope.core.trace.slice.head_slice import HeadSlice
from headscope.core.upstream.torch import function_names
from headscope.core.upstream.transformers import class_names_in_source

SPLITS = {"split", "chunk", "unbind", "tensor_split"}
"""Operations that cut a tensor into several."""
_SPELLINGS = {
    "add": ("__add__", "__radd__", "__iadd__"),
    "sub": ("__sub__", "__rsub__", "__isub__", "rsub", "subtract"),
    "mul": ("__mul__", "__rmul__", "__imul__", "multiply"),
    "div": ("__truediv__", "__rtruediv__", "__itruediv__", "__idiv__", "__rdiv__", "divide", "true_divide"),
    "matmul": ("__matmul__", "__rmatmul__"),
    "neg": ("__neg__",),
    "pow": ("__pow__", "__rpow__", "__ipow__"),
    "floor_divide": ("__floordiv__", "__rfloordiv__", "__ifloordiv__"),
    "remainder": ("__mod__", "__rmod__", "__imod__"),
    "bitwise_not": ("__invert__",),
    "bitwise_and": ("__and__",),
    "bitwise_or": ("__or__",),
    "bitwise_xor": ("__xor__",),
    "eq": ("__eq__",),
    "ne": ("__ne__",),
    "lt": ("__lt__",),
    "le": ("__le__",),
    "gt": ("__gt__",),
    "ge": ("__ge__",),
    "transpose": ("T", "mT"),
    "cat": ("concat", "concatenate"),
    "max": ("amax",),
    "index_put": ("__setitem__",),
    "softmax": ("_softmax", "special_softmax"),
    "log_softmax": ("special_log_softmax",),
    "sigmoid": ("expit", "special_expit"),
    "slice": ("narrow",),
    "index": ("index_select",),
}
"""Names of stages, with the functions of PyTorch that have another name and do the same."""
_NAMES = {function: name for name, functions in _SPELLINGS.items() for function in functions}
_SILENT = {
    "to", "float", "half", "bfloat16", "double", "type", "type_as", "contiguous", "clone", "detach", "requires_grad_",
    "cpu", "cuda", "alias", "data", "expand_as", "__deepcopy__",
}  # fmt: skip
_NORMS = (("RMSNorm", "rms_norm"), ("LayerNorm", "layer_norm"), ("GELU", "gelu"), ("SiLU", "silu"))


@dataclass(frozen=True, slots=True)
class Step:
    """One or several operations that count as one: a leaf module written in several lines counts once."""

    operations: tuple[Operation, ...]
    name: str

    @property
    def last(self) -> Operation:
        """Operation whose result the step hands on."""
        return self.operations[-1]


def read_steps(head: HeadSlice) -> tuple[Step, ...]:
    """Groups the operations of a head into steps in execution order, silent conversions included."""
    return tuple(_make_step(group) for group in _step_groups(head))


def _step_groups(head: HeadSlice) -> Iterator[tuple[Operation, ...]]:
    group: list[Operation] = []
    for operation in head.operations:
        modules = group[-1].modules if group else ()
        # Operations of one call of a leaf stay together.
        if group and not (group[-1].call == operation.call and modules and _is_leaf(modules[-1])):
            yield from _folded_or_single(group, head)
            group = []
        group.append(operation)
    if group:
        yield from _folded_or_single(group, head)


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None


def _folded_or_single(group: list[Operation], head: HeadSlice) -> Iterator[tuple[Operation, ...]]:
    """Yields the group as one step if it keeps the shape (a norm, an activation); otherwise each operation
    separately.
    """
    entering = next(tensor for tensor in group[0].inputs if id(tensor) in head.derived)
    # A norm written in six lines is one thing to a reader. A leaf that changes the shape may also pool, which must
    # show.
    if len(group) > 1 and entering.shape == group[-1].outputs[0].shape:
        yield tuple(group)
    else:
        yield from ((operation,) for operation in group)


def _make_step(group: tuple[Operation, ...]) -> Step:
    if len(group) > 1 and sum(operation.name not in _SILENT for operation in group) > 1:
        return Step(group, _name_of_class(type(group[-1].modules[-1]).__name__))
    loud = next((operation for operation in group if operation.name not in _SILENT), group[-1])
    return Step(group, index_operation(loud) if loud.name == "__getitem__" else _name_of_function(loud.name))


def single_step(operation: Operation) -> Step:
    """Makes a step of one operation."""
    return _make_step((operation,))


def _name_of_function(function: str) -> str:
    name = _NAMES.get(function, function)
    # `add_` is `add` in place; the underscores of `__lshift__` belong to its name.
    return name if name.startswith("__") else name.rstrip("_")


def _name_of_class(name: str) -> str:
    for part, known in _NORMS:
        if part in name:
            return known
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def function_operations() -> frozenset[str]:
    """Lists the names of the stages that run one of PyTorch's functions."""
    functions = (_name_of_function(name) for name in function_names())
    return frozenset((*functions, *INDEX_OPERATIONS)) - _SILENT


def module_operations() -> frozenset[str]:
    """Lists the names of the stages that run a module in several operations, such as an activation of Transformers."""
    return frozenset(_name_of_class(name) for name in class_names_in_source())


def is_silent(step: Step) -> bool:
    """True if a step only converts or copies: the same values in the same shape."""
    return step.name in _SILENT


def build_stages(head: HeadSlice, steps: tuple[Step, ...]) -> tuple[Stage, ...]:
    """Builds the stages to report, numbered from 0 in execution order."""
    loud = [step for step in steps if not is_silent(step)]
    makers = _makers_of_operations(steps, head)
    return tuple(_build_stage(index, step, head, makers) for index, step in enumerate(loud))


def _makers_of_operations(steps: tuple[Step, ...], head: HeadSlice) -> dict[int, int]:
    """Maps each operation's index to the stage whose values it hands on; a silent step hands on what it read."""
    found: dict[int, int] = {}
    stage = 0
    for step in steps:
        maker = stage
        if is_silent(step):
            maker = found.get(head.execution.graph.producer(entering_tensors(step, head)[0]), HIDDEN_STATES)
        else:
            stage += 1
        found.update((operation.index, maker) for operation in step.operations)
    return found


def _build_stage(index: int, step: Step, head: HeadSlice, makers: dict[int, int]) -> Stage:
    shown = next((item for item in step.operations if item.name not in _SILENT), step.last)
    innermost = shown.modules[-1] if shown.modules else head.execution.model
    names, probe = head.execution.names, head.execution.probe
    entering = entering_tensors(step, head)
    return Stage(
        index=index,
        operation=step.name,
        module=names.path(shown),
        module_class=type(innermost).__name__,
        functional=not (_is_leaf(innermost) and id(innermost) in names.modules),
        input_shapes=tuple(probe.shape(tensor.shape) for tensor in entering),
        output_shape=probe.shape(step.last.outputs[0].shape),
        parameters=_leaves_of(step, head, names.parameters),
        file=short_path(shown.file),
        line=shown.line,
        detail=_shown_arguments(shown),
        inputs=tuple(makers.get(head.execution.graph.producer(tensor), HIDDEN_STATES) for tensor in entering),
        buffers=_leaves_of(step, head, names.buffers),
    )


def _leaves_of(step: Step, head: HeadSlice, names: dict[int, str]) -> tuple[str, ...]:
    """Names the tensors that enter a step beside the hidden states, directly or through operations on them alone.

    Those of another encoder are not the head's.
    """
    found: dict[str, None] = {}
    waiting = [tensor for operation in reversed(step.operations) for tensor in reversed(operation.inputs)]
    # What another encoder reads belongs to that encoder, not to the head.
    seen = set(head.beside)
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in head.derived:
            continue
        made = head.execution.graph.maker(tensor)
        if id(tensor) in names:
            found[names[id(tensor)]] = None
        elif made is not None and made.index not in seen:
            seen.add(made.index)
            waiting.extend(reversed(made.inputs))
    return tuple(found)


def place_of(made: Operation | Exit | Guess) -> str:
    """Writes where the source has an operation, as sentences name it: `modeling_own.py:12`."""
    return f"{short_path(made.file)}:{made.line}"


def short_path(file: str) -> str:
    """Shortens a source path to the part behind the package folder, or relative to here, or to its name."""
    path = Path(file)
    for marker in ("site-packages", "dist-packages"):
        if marker in path.parts:
            return "/".join(path.parts[path.parts.index(marker) + 1 :])
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.name


def _shown_arguments(operation: Operation) -> str:
    """Writes the few arguments that matter to a reader: an index, `p` of a dropout, `dim` of a reduction."""
    if operation.name == "__getitem__":
        return spell_index(operation)
    if "dropout" in operation.name:
        value = operation.argument(1, "p")
        return "" if value is None else f"p={value}"
    if _NAMES.get(operation.name, operation.name) in {"mean", "sum", "max", "softmax", "cat"}:
        value = operation.argument(1, "dim")
        if value is None and operation.function is nn.functional.softmax:
            # What it chooses without a dim: `_get_softmax_dim` in torch/nn/functional.py.
            value = 0 if operation.inputs[0].dim() in {0, 1, 3} else 1
        return f"dim={value}" if isinstance(value, int | tuple | list) and not isinstance(value, bool) else ""
    return ""


def entering_tensors(step: Step, head: HeadSlice) -> list[torch.Tensor]:
    """Lists the tensors derived from the hidden states that a step reads from outside itself, in order, each once."""
    made = {id(output) for operation in step.operations for output in operation.outputs}
    read = (tensor for operation in step.operations for tensor in operation.inputs)
    found = {id(tensor): tensor for tensor in read if id(tensor) in head.derived and id(tensor) not in made}
    return list(found.values())
