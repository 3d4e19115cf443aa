"""Facts as pandas tables: one row for each parameter of a model, or for each finding. pandas is imported on use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headscope.errors import Unsupported
from headscope.facts import Finding, Report

if TYPE_CHECKING:
    import pandas


def parameters_frame(report: Report) -> pandas.DataFrame:
    """One row for each parameter and persistent buffer of the model, in the model's order.

    `in_head` says whether it belongs to the head, `live` whether the scores depend on it. Both are `<NA>` in every row
    if the head was not traced.
    """
    head = report.head
    own = {item.name for item in head.tensors} if head is not None else set()
    beside = set(head.not_live) if head is not None else set()
    origins = report.weights.parameters
    return _frame(
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
    return _frame(
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


def _frame(columns: Mapping[str, tuple[Sequence[object], str]]) -> pandas.DataFrame:
    """A table with a type for each column, so that one without rows has the same."""
    try:
        import pandas as pd
    except ImportError as err:
        raise Unsupported("to_pandas needs pandas, which is not installed", 'pip install "headscope[pandas]"') from err
    return pd.DataFrame({name: pd.Series(list(values), dtype=kind) for name, (values, kind) in columns.items()})
