"""Other paths of a forward: what it runs where no row has padding, or where each has one token."""

from collections.abc import Iterator
from warnings import catch_warnings

from torch import nn

from headscope.errors import Unsupported
from headscope.facts import Unavailable
from headscope.trace.execution import Execution, run_forward
from headscope.trace.stages import short_path

_SHOWN = 3


def other_paths(model: nn.Module, execution: Execution, base: nn.Module | None) -> Iterator[Unavailable]:
    """The kinds of input on which `model` runs other lines outside its base model than `execution` did.

    `execution` ran on padded rows, and what is shown holds for those. A forward that fails on an input takes no other
    path on it. Without a base model nothing is compared: encoders skip their masks where nothing is padded.
    """
    probe = execution.probe
    if base is None or not probe.rows or "attention_mask" not in probe.inputs or probe.sizes.choices > 1:
        return
    usual, seen = _lines(execution, base), []
    for name, other in (("without padding", probe.without_padding()), ("of a single token", probe.of_one_token())):
        try:
            with catch_warnings(action="ignore"):  # what PyTorch says of a single token is not about the model
                found = _lines(run_forward(model, other, hint="", lend=False), base)
        except Unsupported:
            continue
        changed = sorted(found ^ usual)
        if changed and changed not in seen:
            seen.append(changed)
            told = ", ".join(f"{short_path(file)}:{line}" for file, line in changed[:_SHOWN])
            reason = f"the forward takes another path there than with padding ({told}); only that with padding is shown"
            yield Unavailable(f"head path {name}", reason)


def _lines(execution: Execution, base: nn.Module) -> set[tuple[str, int]]:
    """The places of all operations outside the base model on which the scores depend."""
    ends = map(execution.graph.producer, execution.logits)
    return {(item.file, item.line) for item in execution.graph.before(*ends) if base not in item.modules}
