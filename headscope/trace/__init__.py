"""From a skeleton to the head path: runs the real forward shape-only and reads the graph."""

from headscope.trace.head import trace_head
from headscope.trace.picks import TokenNames

__all__ = ["TokenNames", "trace_head"]
