"""The use cases: each joins the rooms below into one result."""

from headscope.api.check import check
from headscope.api.compare import compare
from headscope.api.environment import environment, surroundings
from headscope.api.examination import Examination, Request, diff_weights, inspect, snapshot
from headscope.api.forward import forward
from headscope.api.heads import heads

__all__ = [
    "Examination",
    "Request",
    "check",
    "compare",
    "diff_weights",
    "environment",
    "forward",
    "heads",
    "inspect",
    "snapshot",
    "surroundings",
]
