"""Reports that show themselves and become tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from headscope.core.facts import Finding, Report
from headscope.errors import Unsupported, UsageError
from headscope.shell.shown import Shown, fields_of

if TYPE_CHECKING:
    import pandas


class Examination(Shown, Report):
    """The result of `inspect` and `diff_weights`, and what `check` and `compare` looked at."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """What `inspect --json` prints, as plain JSON values."""
        from headscope.shared.report.documents import inspect_document

        return inspect_document(self)

    def to_markdown(self) -> str:
        """What `inspect --format markdown` prints, for a model card or an issue."""
        from headscope.shared.report.documents import inspect_markdown

        return inspect_markdown(self)

    def to_pandas(self, table: Literal["parameters", "findings"] = "parameters") -> pandas.DataFrame:
        """The model's parameters and persistent buffers, one per row, or the findings; needs pandas.

        Raises UsageError for another table.
        """

        match table:
            case "parameters":
                return parameters_frame(self)
            case "findings":
                return findings_frame(self.findings)
        raise UsageError(f"no table {table!r}", 'give "parameters" or "findings"')


def shown(report: Report) -> Examination:
    """Makes a result that shows itself from a report."""
    return Examination(**fields_of(report))


def parameters_frame(report: Report) -> pandas.DataFrame:
    """One row for each parameter and persistent buffer of the model, in the model's order.

    `in_head` says whether it belongs to the head, `live` whether the scores depend on it. Both are `<NA>` in every row
    if the head was not traced.
    """
    head = report.head
    own = {item.name for item in head.tensors} if head is not None else set()
    beside = set(head.not_live) if head is not None else set()
    origins = report.weights.parameters
    return _typed_frame(
        {
            "name": ([item.name for item in origins], "str"),
            "status": ([item.status.value for item in origins], "str"),
            "shape": ([item.shape for item in origins], "object"),
            "dtype": ([item.dtype for item in origins], "str"),
            "count": ([item.count for item in origins], "int64"),
            "checkpoint_keys": ([item.checkpoint_keys for item in origins], "object"),
            "is_buffer": ([item.is_buffer for item in origins], "bool"),
            "in_head": ([item.name in own if head is not None else None for item in origins], "boolean"),
            "live": ([item.name not in beside if head is not None else None for item in origins], "boolean"),
        }
    )


def findings_frame(findings: Sequence[Finding]) -> pandas.DataFrame:
    """One row for each finding, in the order of the result."""
    return _typed_frame(
        {
            "id": ([item.id for item in findings], "str"),
            "severity": ([item.severity.value for item in findings], "str"),
            "title": ([item.title for item in findings], "str"),
            "message": ([item.message for item in findings], "str"),
            "remedy": ([item.remedy for item in findings], "str"),
            "parameters": ([item.parameters for item in findings], "object"),
            "url": ([item.url for item in findings], "str"),
            "code": ([item.code for item in findings], "str"),
        }
    )


def _typed_frame(columns: Mapping[str, tuple[Sequence[object], str]]) -> pandas.DataFrame:
    """A table with a type for each column, so that one without rows has the same."""
    try:
        import pandas as pd
    except ImportError as err:
        raise Unsupported("to_pandas needs pandas, which is not installed", 'pip install "headscope[pandas]"') from err
    return pd.DataFrame({name: pd.Series(list(values), dtype=kind) for name, (values, kind) in columns.items()})
