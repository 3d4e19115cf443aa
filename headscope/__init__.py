"""headscope: what exactly turns the hidden states into class scores, and which weights did the checkpoint give?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscope import errors

if TYPE_CHECKING:
    from headscope import facts
    from headscope.api import (
        Checked,
        Compared,
        DeviceName,
        DrawingName,
        Edited,
        Engines,
        Examination,
        Explained,
        Forwarded,
        Heads,
        Ignore,
        Probed,
        ProfileName,
        Progress,
        ScanRow,
        SeverityName,
        Snapshot,
        Verified,
        VerifiedServer,
        check,
        code,
        compare,
        diagram,
        diff_weights,
        edit,
        engines,
        environment,
        explain,
        forward,
        heads,
        inspect,
        probe,
        scan,
        scan_batch,
        snapshot,
        verify,
        verify_save,
        verify_served,
    )
    from headscope.integrations.trainer import HeadscopeCallback

    __version__: str

__all__ = [
    "Checked",
    "Compared",
    "DeviceName",
    "DrawingName",
    "Edited",
    "Engines",
    "Examination",
    "Explained",
    "Forwarded",
    "Heads",
    "HeadscopeCallback",
    "Ignore",
    "Probed",
    "ProfileName",
    "Progress",
    "ScanRow",
    "SeverityName",
    "Snapshot",
    "Verified",
    "VerifiedServer",
    "__version__",
    "check",
    "code",
    "compare",
    "diagram",
    "diff_weights",
    "edit",
    "engines",
    "environment",
    "errors",
    "explain",
    "facts",
    "forward",
    "heads",
    "inspect",
    "probe",
    "scan",
    "scan_batch",
    "snapshot",
    "verify",
    "verify_save",
    "verify_served",
]

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept every name

    def __getattr__(name: str) -> object:
        """The public names, imported on first use: `import headscope` costs nothing."""
        if name not in __all__:
            raise AttributeError(f"module 'headscope' has no attribute {name!r}")
        from importlib import import_module

        match name:
            case "__version__":
                return import_module("headscope.facts.results.environment").tool_version()
            case "HeadscopeCallback":
                return import_module("headscope.integrations.trainer").HeadscopeCallback
            case "facts":
                return import_module("headscope.facts")
            case _:
                return getattr(import_module("headscope.api"), name)

    def __dir__() -> list[str]:
        return __all__
