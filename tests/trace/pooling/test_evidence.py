"""The evidence of a pooling: the line that it names holds the operation that it names."""

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from test_families import READINGS, Reading, trace

from headscope.core.model.classes.defaults import default_configs
from headscope.core.model.quiet import quiet
from headscope.core.trace import TokenNames, trace_head
from headscope.errors import Unsupported
from headscope.facts import Evidence, HeadTrace, Task
from tests import warm
from tests.trace.small import spread

INSTALLED = Path(transformers.__file__).parents[1]
_POOLER = r"|pool(er|ing)?\w*\(|\.head\w*\(|summary\("
_POOLS = ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool2d", "adaptive_max_pool2d",
          "max_pool1d")  # fmt: skip
MARKS = dict.fromkeys(_POOLS, r"pool\w*\(") | {
    "select": r"\[[^\]]*\d[^\]]*\]|\.select\(|unbind|getattr",
    "index": r"\[[^\]]*\]|\.(index_)?select\(",
    "slice": r"\[[^\]]*:[^\]]*\]",
    "mean": r"mean\(" + _POOLER,
    "sum": r"sum\(" + _POOLER,
    "max": r"max\(" + _POOLER,
    "mul": r"\*",
    "div": r"/",
    "index_put": r"\]\s*[-+*/]?=",
    "matmul": r"matmul\(|@|bmm\(",
    "scaled_dot_product_attention": r"scaled_dot_product_attention|attn|attention",
}
"""What the statement that runs an operation has in it, where that is no call by its name.

A line in a comment or between statements has nothing.
"""


@lru_cache(maxsize=256)
def _statements(file: str) -> tuple[tuple[int, int, str], ...]:
    """First line, last line and text of every simple statement of an installed source file."""
    text = (INSTALLED / file).read_text(encoding="utf-8")
    lines = text.splitlines()
    simple = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, simple)]
    return tuple(
        (node.lineno, node.end_lineno or 0, "\n".join(lines[node.lineno - 1 : node.end_lineno])) for node in found
    )


def statement_at(evidence: Evidence) -> str:
    """The innermost statement on the line that a piece of evidence names; "" where there is none."""
    inside = [item for item in _statements(evidence.file) if item[0] <= evidence.line <= item[1]]
    return min(inside, key=lambda item: item[1] - item[0], default=(0, 0, ""))[2]


def wrong_lines(traced: HeadTrace) -> list[str]:
    """The pieces of evidence whose line does not hold their operation."""
    return [
        f"{item.operation} at {item.file}:{item.line}: {textwrap.dedent(statement_at(item))!r}"
        for item in traced.pooling.evidence
        if not re.search(MARKS.get(item.operation, rf"{item.operation}\("), statement_at(item))
    ]


@pytest.mark.parametrize("reading", READINGS, ids=lambda item: f"{item.family}-{item.kind}")
def test_the_line_of_the_evidence_is_the_line_that_ran(reading: Reading) -> None:
    traced = trace(reading.family, **dict(reading.changes))
    assert traced.pooling.evidence
    assert all(item.file.startswith("transformers/") for item in traced.pooling.evidence)
    assert wrong_lines(traced) == []


@pytest.mark.parametrize("reading", READINGS, ids=lambda item: f"{item.family}-{item.kind}")
def test_the_line_lies_in_the_forward_of_the_module_that_is_named(reading: Reading) -> None:
    for stage in trace(reading.family, **dict(reading.changes)).stages:
        module = import_module(stage.file.removesuffix(".py").replace("/", "."))
        cls = getattr(module, stage.module_class, None)
        if cls is None:  # a layer of PyTorch: the line is that of its caller
            continue
        sources = [inspect.getsourcelines(part) for part in cls.__mro__ if part.__module__.startswith("transformers")]
        assert any(start <= stage.line < start + len(lines) for lines, start in sources), stage


_EACH = {Task.SEQUENCE_CLASSIFICATION: 14, Task.IMAGE_CLASSIFICATION: 8, Task.AUDIO_CLASSIFICATION: 3}
_NOT_HERE = "LayoutLMv2ForSequenceClassification"
"""It needs detectron2."""
CLASSES = [item for item in spread(_EACH, begin=1) if item[1] != _NOT_HERE]


@pytest.mark.parametrize(("task", "name", "model_type"), CLASSES, ids=str)
def test_the_lines_of_a_spread_of_classes_hold_their_operations(task: Task, name: str, model_type: str) -> None:
    assert wrong_lines(_traced(name, model_type, task)) == []


def _traced(name: str, model_type: str, task: Task) -> HeadTrace:
    """The trace at few layers, else at the default depth: a hybrid model may need its whole pattern of layers."""
    shallow, deep = (config for config, _ in default_configs(model_type))
    try:
        return _trace(name, shallow, task)
    except Unsupported:
        return _trace(name, deep, task)


def _trace(name: str, config: Any, task: Task) -> HeadTrace:
    if getattr(config.get_text_config(), "pad_token_id", None) is None:
        config.get_text_config().pad_token_id = 0
    with quiet(), torch.device("meta"):
        model = getattr(transformers, name)(config)
    with quiet():
        return trace_head(model, task, TokenNames()).trace


_TYPED = """
import torch, headscope
from torch import nn

class Typed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.fc = nn.Embedding(9, 8), nn.Linear(8, 3)

    def forward(self, ids):
        return self.fc(self.embedding(ids).mean(1))  # line 11

ids = torch.ones(2, 5, dtype=torch.long)
plain = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 3))
for model in (Typed(), plain):
    print([(stage.file, stage.line) for stage in headscope.inspect(model, example_inputs=ids).head.stages])
"""


@pytest.mark.parametrize(("given", "name"), [(("-c", _TYPED), "<string>"), (("-",), "<stdin>")], ids=["c", "stdin"])
def test_a_module_without_a_file_has_the_line_that_was_typed_or_none(given: tuple[str, ...], name: str) -> None:
    python = warm.python() if given[0] == "-c" else [sys.executable]
    done = subprocess.run([*python, *given], input=_TYPED, capture_output=True, text=True, check=True)
    typed, plain = done.stdout.splitlines()
    line = next(at for at, text in enumerate(_TYPED.splitlines(), 1) if "# line 11" in text)
    assert typed == str([(name, line)] * 2)
    assert plain == str([("", 0)])
