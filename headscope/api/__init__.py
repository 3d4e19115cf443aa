"""The use cases, one file each. A command imports only its own, and none imports torch or transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope.api.arguments.option import (
        DeviceName as DeviceName,
        DrawingName as DrawingName,
        ProfileName as ProfileName,
        SeverityName as SeverityName,
    )
    from headscope.api.checking import check as check
    from headscope.api.coding import code as code
    from headscope.api.comparing import Compared as Compared, compare as compare
    from headscope.api.drawing import diagram as diagram
    from headscope.api.editing import Edited as Edited, edit as edit
    from headscope.api.engine_heads import Engines as Engines, engines as engines
    from headscope.api.forward_pass import Forwarded as Forwarded, forward as forward
    from headscope.api.inspection import inspect as inspect
    from headscope.api.loaded.parameter_groups import parameter_groups as parameter_groups
    from headscope.api.loaded.save_verification import verify_save as verify_save
    from headscope.api.loaded.server_verification import (
        VerifiedServer as VerifiedServer,
        verify_served as verify_served,
    )
    from headscope.api.loaded.verification import Verified as Verified, verify as verify
    from headscope.api.lookup.atlas import Heads as Heads, heads as heads
    from headscope.api.lookup.explaining import Explained as Explained, explain as explain
    from headscope.api.lookup.snapshots import Snapshot as Snapshot, snapshot as snapshot
    from headscope.api.many.batches import scan_batch as scan_batch
    from headscope.api.many.scanning import scan as scan
    from headscope.api.probing import Probed as Probed, probe as probe
    from headscope.api.repairing import RepairedCopy as RepairedCopy, repair as repair
    from headscope.api.results.shown import Checked as Checked, Examination as Examination
    from headscope.api.weight_diff import diff_weights as diff_weights
    from headscope.checks import Ignore as Ignore
    from headscope.examination.base.environment import environment as environment
    from headscope.examination.base.request import Progress as Progress
    from headscope.facts.results.scan import ScanRow as ScanRow

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept every name
    _NAMES_OF = {
        "api.arguments.option": "DeviceName DrawingName ProfileName SeverityName",
        "api.lookup.atlas": "heads Heads",
        "api.checking": "check",
        "api.coding": "code",
        "api.comparing": "compare Compared",
        "api.drawing": "diagram",
        "api.editing": "edit Edited",
        "api.engine_heads": "engines Engines",
        "api.lookup.explaining": "explain Explained",
        "api.forward_pass": "forward Forwarded",
        "api.inspection": "inspect",
        "api.loaded.parameter_groups": "parameter_groups",
        "api.loaded.save_verification": "verify_save",
        "api.loaded.server_verification": "verify_served VerifiedServer",
        "api.loaded.verification": "verify Verified",
        "api.many.batches": "scan_batch",
        "api.many.scanning": "scan",
        "api.probing": "probe Probed",
        "api.repairing": "repair RepairedCopy",
        "api.results.shown": "Checked Examination",
        "api.lookup.snapshots": "snapshot Snapshot",
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
