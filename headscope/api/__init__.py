"""The use cases, one file each. A command imports only its own, and none imports torch or transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope.api.arguments import DeviceName, DrawingName, ProfileName, SeverityName
    from headscope.api.checking import check
    from headscope.api.coding import code
    from headscope.api.comparing import compare
    from headscope.api.drawing import diagram
    from headscope.api.editing import edit
    from headscope.api.engine_heads import engines
    from headscope.api.forward_pass import forward
    from headscope.api.inspection import inspect
    from headscope.api.loaded.save_verification import verify_save
    from headscope.api.loaded.server_verification import verify_served
    from headscope.api.loaded.verification import verify
    from headscope.api.lookup.atlas import heads
    from headscope.api.lookup.disk import disk_usage
    from headscope.api.lookup.explaining import explain
    from headscope.api.lookup.snapshots import snapshot
    from headscope.api.many.batches import scan_batch
    from headscope.api.many.scanning import scan
    from headscope.api.probing import probe
    from headscope.api.results.shown import (
        Checked,
        Compared,
        Edited,
        Engines,
        Examination,
        Explained,
        Forwarded,
        Heads,
        Probed,
        Snapshot,
        Verified,
        VerifiedServer,
    )
    from headscope.api.weight_diff import diff_weights
    from headscope.checks import Ignore
    from headscope.examination.base.environment import environment, surroundings
    from headscope.examination.base.request import Progress, Request
    from headscope.facts.results.scan import ScanRow

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
    "Ignore",
    "Probed",
    "ProfileName",
    "Progress",
    "Request",
    "ScanRow",
    "SeverityName",
    "Snapshot",
    "Verified",
    "VerifiedServer",
    "check",
    "code",
    "compare",
    "diagram",
    "diff_weights",
    "disk_usage",
    "edit",
    "engines",
    "environment",
    "explain",
    "forward",
    "heads",
    "inspect",
    "probe",
    "scan",
    "scan_batch",
    "snapshot",
    "surroundings",
    "verify",
    "verify_save",
    "verify_served",
]

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept every name
    _NAMES_OF = {
        "api.arguments": "DeviceName DrawingName ProfileName SeverityName",
        "api.lookup.atlas": "heads",
        "api.checking": "check",
        "api.coding": "code",
        "api.comparing": "compare",
        "api.lookup.disk": "disk_usage",
        "api.drawing": "diagram",
        "api.editing": "edit",
        "api.engine_heads": "engines",
        "api.lookup.explaining": "explain",
        "api.forward_pass": "forward",
        "api.inspection": "inspect",
        "api.loaded.save_verification": "verify_save",
        "api.loaded.server_verification": "verify_served",
        "api.loaded.verification": "verify",
        "api.many.batches": "scan_batch",
        "api.many.scanning": "scan",
        "api.probing": "probe",
        "api.results.shown": (
            "Checked Compared Edited Engines Examination Explained Forwarded Heads Probed Snapshot Verified "
            "VerifiedServer"
        ),
        "api.lookup.snapshots": "snapshot",
        "api.weight_diff": "diff_weights",
        "checks": "Ignore",
        "examination.base.environment": "environment surroundings",
        "examination.base.request": "Progress Request",
        "facts.results.scan": "ScanRow",
    }
    _MODULE_OF = {name: f"headscope.{module}" for module, names in _NAMES_OF.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        """A public name, imported on first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'headscope.api' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_MODULE_OF[name]), name)
