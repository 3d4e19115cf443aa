"""Which weights that the scores depend on the checkpoint did not give."""

from dataclasses import dataclass

from headscope.facts.head import Head
from headscope.facts.report import Report
from headscope.facts.weights import ParameterStatus


@dataclass(frozen=True, slots=True)
class Missing:
    """Names of the parameters and persistent buffers that the checkpoint did not give and that the logits depend on."""

    head: tuple[str, ...]
    elsewhere: tuple[str, ...]


def find_missing(report: Report) -> Missing:
    """The new and mismatched parameters in use; those beside every path to the logits are no loss."""
    missing = (*report.weights.new, *(item.parameter for item in report.weights.mismatched))
    if report.head is None:
        return Missing((), missing)
    own = {item.name: item for item in report.head.tensors}
    ignored = tuple(name for name, item in own.items() if item.status is ParameterStatus.IGNORED)
    beside = set(report.head.not_live)
    counted = [name for name in (*missing, *ignored) if name not in beside]
    return Missing(
        tuple(name for name in counted if name in own and own[name].live),
        tuple(name for name in counted if name not in own and not _is_beside(name, report.head)),
    )


def _is_beside(name: str, head: Head) -> bool:
    return any(name.startswith(f"{module.path}.") for module in head.unused_modules)
