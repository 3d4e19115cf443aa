"""Scores that are a few rows of a larger matrix, found in the operations: two tokens of a language-model head."""

import torch

from headscope.core.facts import Pooling, PoolingKind, TokenRow, TokenRows
from headscope.core.trace.record.execution import Execution
from headscope.core.trace.record.indexing import rows_on_last_axis
from headscope.core.trace.replay.picks import HeadSteps
from headscope.core.trace.replay.replay import Replay
from headscope.core.trace.slice.head_slice import HeadSlice
from headscope.core.trace.slice.stages import Step, entering_tensors
from headscope.errors import Unsupported

_MOST_ROWS = 64
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5
_OF_ONE_POSITION = {
    PoolingKind.FIRST_TOKEN, PoolingKind.LAST_TOKEN, PoolingKind.LAST_NON_PAD_TOKEN, PoolingKind.EOS_TOKEN,
    PoolingKind.TOKEN_AT,
}  # fmt: skip


def read_head_rows(known: HeadSteps, replay: Replay | None) -> TokenRows | None:
    """Finds the rows of a larger matrix that the scores are made of; None for a whole matrix, or if it is not
    proven.
    """
    found = _rows_picked(known)
    if found is None or replay is None:
        return None
    matrix, rows = found
    if not _rows_explain_scores(matrix, rows, known.head, replay):
        return None
    texts = dict(known.tokens.rows)
    return TokenRows(
        known.execution.names.parameters[id(matrix)],
        tuple(TokenRow(row, texts.get(row, "")) for row in rows),
        known.tokens.vocabulary or len(matrix),
    )


def _rows_picked(known: HeadSteps) -> tuple[torch.Tensor, tuple[int, ...]] | None:
    """Finds the matrix and the rows that the head picks out of what it makes; None if it does not do so throughout."""
    whole: dict[int, torch.Tensor] = {}
    rows: dict[int, None] = {}
    matrices: dict[int, torch.Tensor] = {}
    for step in known.steps:
        entering = [tensor for tensor in entering_tensors(step, known.head) if id(tensor) in whole]
        if not entering:
            matrix = _matrix_of(step, known.execution)
            if matrix is not None:
                whole.update((id(output), matrix) for output in step.last.outputs)
            continue
        matrix = whole[id(entering[0])]
        outputs = step.last.outputs
        if all(output.dim() and output.shape[-1] == len(matrix) for output in outputs):
            whole.update((id(output), matrix) for item in step.operations for output in item.outputs)
            continue
        picked = rows_on_last_axis(step.last) if step.name in {"index", "select"} and len(entering) == 1 else None
        if picked is None:
            return None
        rows.update(dict.fromkeys(picked))
        matrices[id(matrix)] = matrix
    is_whole = any(id(item) in whole for item in known.execution.logits)
    if not rows or len(rows) > _MOST_ROWS or len(matrices) != 1 or is_whole:
        return None
    return next(iter(matrices.values())), tuple(rows)


def _matrix_of(step: Step, execution: Execution) -> torch.Tensor | None:
    """Returns the parameter with one row for each entry of the last axis of what a step makes; None without one."""
    if step.name != "linear" or len(step.last.args) < 2:  # the input and the weight
        return None
    weight = step.last.args[1]
    is_matrix = isinstance(weight, torch.Tensor) and id(weight) in execution.names.parameters and weight.dim() == 2
    return weight if is_matrix else None


def _rows_explain_scores(matrix: torch.Tensor, rows: tuple[int, ...], head: HeadSlice, replay: Replay) -> bool:
    """True if changing all other rows keeps the scores, and changing any of these does not."""
    execution = head.execution
    scores = execution.logits[0]
    end = execution.graph.producer(scores)
    operations = tuple(item for item in head.operations if item.index <= end)
    # Indexing alone doesn't prove it: the head may read other columns on another path.
    usual = replay.value(matrix)
    noise = torch.randn(usual.shape, generator=torch.Generator().manual_seed(11))

    def scores_with(changed: torch.Tensor) -> torch.Tensor:
        weight = torch.where(changed.unsqueeze(1), usual + noise, usual)
        return replay.run_again(operations, {id(matrix): weight}, scores)

    others = torch.ones(usual.shape[0], dtype=torch.bool)
    others[list(rows)] = False
    try:
        before = replay.logits[0].detach()
        if not torch.allclose(scores_with(others), before, _RELATIVE, _ABSOLUTE):
            return False
        for row in rows:
            one = torch.zeros_like(others)
            one[row] = True
            if torch.allclose(scores_with(one), before, _RELATIVE, _ABSOLUTE):
                return False
    except (Unsupported, KeyError, RuntimeError):
        return False
    # Start and end scores come from two tensors, and only the first one was compared.
    return len(execution.logits) == 1


def with_rows(pooling: Pooling, rows: TokenRows | None) -> Pooling:
    """Describes the pooling of scores that are rows of a matrix at one position of each text as `token_pair`."""
    if rows is None or pooling.kind not in _OF_ONE_POSITION or len(rows.rows) > 2:
        return pooling
    named = " and ".join(row.token if row.token else f"token {row.id}" for row in rows.rows)
    return Pooling(
        PoolingKind.TOKEN_PAIR,
        pooling.tokens,
        f"{pooling.rule}; the scores are the rows of {named} in {rows.parameter}, of {rows.vocabulary:,}",
        pooling.evidence,
        pooling.parts,
    )
