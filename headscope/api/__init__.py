"""The use cases, one file each. A command imports only its own, and none imports torch or transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope.api.arguments import (
        DeviceName as DeviceName,
        DrawingName as DrawingName,
        ProfileName as ProfileName,
        SeverityName as SeverityName,
    )
    from headscope.api.checking import check as check
    from headscope.api.coding import code as code
    from headscope.api.comparing import compare as compare
    from headscope.api.drawing import diagram as diagram
    from headscope.api.editing import edit as edit
    from headscope.api.engine_heads import engines as engines
    from headscope.api.forward_pass import forward as forward
    from headscope.api.inspection import inspect as inspect
    from headscope.api.loaded.parameter_groups import parameter_groups as parameter_groups
    from headscope.api.loaded.save_verification import verify_save as verify_save
    from headscope.api.loaded.server_verification import verify_served as verify_served
    from headscope.api.loaded.verification import verify as verify
    from headscope.api.lookup.atlas import heads as heads
    from headscope.api.lookup.explaining import explain as explain
    from headscope.api.lookup.snapshots import snapshot as snapshot
    from headscope.api.many.batches import scan_batch as scan_batch
    from headscope.api.many.scanning import scan as scan
    from headscope.api.probing import probe as probe
    from headscope.api.repairing import repair as repair
    from headscope.api.results.shown import (
        Checked as Checked,
        Compared as Compared,
        Edited as Edited,
        Engines as Engines,
        Examination as Examination,
        Explained as Explained,
        Forwarded as Forwarded,
        Heads as Heads,
        Probed as Probed,
        RepairedCopy as RepairedCopy,
        Snapshot as Snapshot,
        Verified as Verified,
        VerifiedServer as VerifiedServer,
    )
    from headscope.api.weight_diff import diff_weights as diff_weights
    from headscope.checks import Ignore as Ignore
    from headscope.examination.base.environment import environment as environment
    from headscope.examination.base.request import Progress as Progress
    from headscope.facts.results.scan import ScanRow as ScanRow

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept every name
    _NAMES_OF = {
        "api.arguments": "DeviceName DrawingName ProfileName SeverityName",
        "api.lookup.atlas": "heads",
        "api.checking": "check",
        "api.coding": "code",
        "api.comparing": "compare",
        "api.drawing": "diagram",
        "api.editing": "edit",
        "api.engine_heads": "engines",
        "api.lookup.explaining": "explain",
        "api.forward_pass": "forward",
        "api.inspection": "inspect",
        "api.loaded.parameter_groups": "parameter_groups",
        "api.loaded.save_verification": "verify_save",
        "api.loaded.server_verification": "verify_served",
        "api.loaded.verification": "verify",
        "api.many.batches": "scan_batch",
        "api.many.scanning": "scan",
        "api.probing": "probe",
        "api.repairing": "repair",
        "api.results.shown": (
            "Checked Compared Edited Engines Examination Explained Forwarded Heads Probed RepairedCopy Snapshot "
            "Verified VerifiedServer"
        ),
        "api.lookup.snapshots": "snapshot",
        "api.weight_diff": "diff_weights",
        "checks": "Ignore",
        "examination.base.environment": "environment",
        "examination.base.request": "Progress",
        "facts.results.scan": "ScanRow",
    }
    _MODULE_OF = {name: f"headscope.{module}" for module, names in _NAMES_OF.items() for name in names.split()}
    __all__ = list(_MODULE_OF)

    def __getattr__(name: str) -> object:
        """A public name, imported on first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'headscope.api' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_MODULE_OF[name]), name)
