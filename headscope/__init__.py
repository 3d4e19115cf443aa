"""headscope: what exactly turns the hidden states into class scores, and which weights did the checkpoint give?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headscope.api import check, compare, diff_weights, environment, forward, heads, inspect, snapshot

__all__ = ["check", "compare", "diff_weights", "environment", "forward", "heads", "inspect", "snapshot"]


def __getattr__(name: str) -> Any:
    """The public functions, imported on first use: `import headscope` costs nothing."""
    if name in __all__:
        from headscope import api

        return getattr(api, name)
    if name == "HeadscopeCallback":
        from headscope.integrations.trainer import HeadscopeCallback

        return HeadscopeCallback
    if name == "__version__":
        from headscope.facts.version import tool_version

        return tool_version()
    raise AttributeError(f"module 'headscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "HeadscopeCallback", "__version__"]
