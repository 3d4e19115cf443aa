"""headscope: what exactly turns the hidden states into class scores, and which weights did the checkpoint give?"""

from typing import TYPE_CHECKING

from headscope import errors as errors
from headscope.errors import HeadNotLoaded as HeadNotLoaded

if TYPE_CHECKING:
    from headscope import facts as facts
    from headscope.api import *  # noqa: F403
    from headscope.integrations.trainer import HeadscopeCallback as HeadscopeCallback

    __version__: str

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept every name

    def __getattr__(name: str) -> object:
        """The public names, imported on first use: `import headscope` costs nothing."""
        from importlib import import_module

        match name:
            case "__all__":
                return __dir__()
            case "__version__":
                return import_module("headscope.core.facts.environment").tool_version()
            case "HeadscopeCallback":
                return import_module("headscope.integrations.trainer").HeadscopeCallback
            case "facts":
                return import_module("headscope.facts")
        api = import_module("headscope.api")
        if name not in api.__all__:
            raise AttributeError(f"module 'headscope' has no attribute {name!r}")
        return getattr(api, name)

    def __dir__() -> list[str]:
        from importlib import import_module

        names = import_module("headscope.api").__all__
        return sorted([*names, "HeadNotLoaded", "HeadscopeCallback", "__version__", "errors", "facts"])
