"""Which weights that the scores depend on the checkpoint did not give."""

from dataclasses import dataclass

from headscope.facts.head import Head
from headscope.facts.report import Report
from headscope.facts.weights import ParameterStatus


@dataclass(frozen=True, slots=True)
class Missing:
    """Names of the parameters that the checkpoint did not give and that the logits depend on."""

    head: tuple[str, ...]
    elsewhere: tuple[str, ...]


def find_missing(report: Report) -> Missing:
    """The new and mismatched parameters in use; those beside every path to the logits are no loss."""
    missing = (*report.weights.new, *(item.parameter for item in report.weights.mismatched))
    if report.head is None:
        return Missing((), missing)
    own = {parameter.name: parameter for parameter in report.head.parameters}
    ignored = tuple(name for name, item in own.items() if item.status is ParameterStatus.IGNORED)
    beside = set(report.head.not_live)
    outside = _outside_base(report)
    counted = [name for name in (*missing, *ignored) if not (name in beside or name.endswith("num_batches_tracked"))]
    in_head = [name for name in counted if name in own or name in outside]
    return Missing(
        tuple(name for name in in_head if name not in own or own[name].live),
        tuple(name for name in counted if name not in in_head and not _is_beside(name, report.head)),
    )


def _outside_base(report: Report) -> set[str]:
    """Names outside the base model, the buffers of a head among them; none where the class names no base model."""
    if not any(item.in_base for item in report.weights.parameters):
        return set()
    return {item.name for item in report.weights.parameters if not item.in_base}


def _is_beside(name: str, head: Head) -> bool:
    return any(name.startswith(f"{module.path}.") for module in head.unused_modules)
