"""Other paths of a forward: what it runs where no row has padding, or where each has one token."""

from collections.abc import Iterator
from typing import Any
from warnings import catch_warnings

from torch import nn

from headscope.errors import Unsupported
from headscope.facts import Unavailable
from headscope.trace.execution import Execution, run_forward
from headscope.trace.recorder import Operation
from headscope.trace.stages import short_path, single_step

_SHOWN = 3
_ARITHMETIC = {"add", "sub", "mul", "div", "pow", "floor_divide", "remainder", "full", "clamp"}


def other_paths(model: nn.Module, execution: Execution, base: nn.Module | None) -> Iterator[Unavailable]:
    """The kinds of input on which `model` runs other lines outside its base model than `execution` did.

    `execution` ran on padded rows, and what is shown holds for those. A forward that fails on a single token takes no
    other path on it. Without a base model nothing is compared: encoders skip their masks where nothing is padded.
    """
    probe = execution.probe
    if base is None or not probe.rows or "attention_mask" not in probe.inputs or probe.sizes.choices > 1:
        return
    seen: list[list[tuple[str, int]]] = []
    for name, other in (("without padding", probe.without_padding()), ("of a single token", probe.of_one_token())):
        is_as_long = other.length == probe.length
        try:
            with catch_warnings(action="ignore"):  # what PyTorch says of a single token is not about the model
                found = _calls(run_forward(model, other, hint=""), base, with_numbers=is_as_long)
        except Unsupported as err:
            if other.length > 1:
                yield Unavailable(f"head path {name}", err.message)
            continue
        changed = sorted({(file, line) for file, line, *_ in found ^ _calls(execution, base, with_numbers=is_as_long)})
        if changed and changed not in seen:
            seen.append(changed)
            told = ", ".join(f"{short_path(file)}:{line}" for file, line in changed[:_SHOWN])
            runs = "runs other code or reads other places"
            reason = f"the forward {runs} on such inputs ({told}); headscope shows the path for padded inputs"
            yield Unavailable(f"head path {name}", reason)


def _calls(execution: Execution, base: nn.Module, *, with_numbers: bool) -> set[tuple[str, int, str, str]]:
    """All operations outside the base model on which the scores depend, by place and name.

    With `with_numbers`, the whole numbers and slices among their arguments count too, but not those of arithmetic: a
    number of tokens divides a sum.
    """
    ends = map(execution.graph.producer, execution.logits)
    return {
        (item.file, item.line, item.name, _numbers(item) if with_numbers else "")
        for item in execution.graph.before(*ends)
        if base not in item.modules
    }


def _numbers(operation: Operation) -> str:
    if single_step(operation).name in _ARITHMETIC:
        return ""
    return repr([*map(_whole, operation.args), *((name, _whole(item)) for name, item in operation.kwargs.items())])


def _whole(item: Any) -> Any:
    """The whole numbers and slices in an argument, as they are nested."""
    if isinstance(item, tuple | list):
        return [_whole(part) for part in item]
    return item if type(item) in {int, slice} else None
