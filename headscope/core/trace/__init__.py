"""From a skeleton to the head path: runs the real forward shape-only and reads the graph."""

from headscope.core.trace.head import TracedHead, trace_called, trace_head
from headscope.core.trace.replay.picks import TokenNames
from headscope.core.trace.replay.replay import HeadProgram

__all__ = ["HeadProgram", "TokenNames", "TracedHead", "trace_called", "trace_head"]
