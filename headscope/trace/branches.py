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

    `execution` ran on padded rows, and what is shown holds for those. A forward that fails on a single token takes no
    other path on it. Without a base model nothing is compared: encoders skip their masks where nothing is padded.
    """
    probe = execution.probe
    if base is None or not probe.rows or "attention_mask" not in probe.inputs or probe.sizes.choices > 1:
        return
    usual, seen = _calls(execution, base), []
    for name, other in (("without padding", probe.without_padding()), ("of a single token", probe.of_one_token())):
        try:
            with catch_warnings(action="ignore"):  # what PyTorch says of a single token is not about the model
                found = _calls(run_forward(model, other, hint=""), base)
        except Unsupported as err:
            if other.length > 1:
                yield Unavailable(f"head path {name}", err.message)
            continue
        changed = sorted({(file, line) for file, line, _ in found ^ usual})
        if changed and changed not in seen:
            seen.append(changed)
            told = ", ".join(f"{short_path(file)}:{line}" for file, line in changed[:_SHOWN])
            reason = f"the forward runs other code on such inputs ({told}); headscope shows the path for padded inputs"
            yield Unavailable(f"head path {name}", reason)


def _calls(execution: Execution, base: nn.Module) -> set[tuple[str, int, str]]:
    """All operations outside the base model on which the scores depend, by place and name."""
    ends = map(execution.graph.producer, execution.logits)
    return {(item.file, item.line, item.name) for item in execution.graph.before(*ends) if base not in item.modules}
