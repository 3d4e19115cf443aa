"""The use cases, one file each. A command imports only its own, and none imports torch or transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope.checks.checked import Checked as Checked
    from headscope.checks.rules import Ignore as Ignore
    from headscope.checks.run import check as check
    from headscope.core.source.environment import environment as environment
    from headscope.core.source.request import Progress as Progress
    from headscope.shared.report.examination import Examination as Examination
    from headscope.shell.options.option import (
        DeviceName as DeviceName,
        DrawingName as DrawingName,
        ProfileName as ProfileName,
        SeverityName as SeverityName,
    )
    from headscope.slices.atlas.run import Heads as Heads, heads as heads
    from headscope.slices.compare.run import Compared as Compared, compare as compare
    from headscope.slices.diagram.run import diagram as diagram
    from headscope.slices.edit.run import Edited as Edited, edit as edit
    from headscope.slices.engines.run import Engines as Engines, engines as engines
    from headscope.slices.fleet.facts import ScanRow as ScanRow
    from headscope.slices.fleet.run import scan as scan, scan_batch as scan_batch
    from headscope.slices.forward.run import Forwarded as Forwarded, forward as forward
    from headscope.slices.inspect.run import inspect as inspect
    from headscope.slices.inspect.weight_diff import diff_weights as diff_weights
    from headscope.slices.loaded.cards import verify_card as verify_card, write_card as write_card
    from headscope.slices.loaded.parameter_groups import parameter_groups as parameter_groups
    from headscope.slices.loaded.run import Verified as Verified, verify as verify
    from headscope.slices.loaded.save_verification import verify_save as verify_save
    from headscope.slices.loaded.server_verification import (
        VerifiedServer as VerifiedServer,
        verify_served as verify_served,
    )
    from headscope.slices.loaded.strict import StrictLoads as StrictLoads, strict as strict
    from headscope.slices.lookup.explaining import Explained as Explained, explain as explain
    from headscope.slices.lookup.snapshots import Snapshot as Snapshot, snapshot as snapshot
    from headscope.slices.probe.coding import code as code
    from headscope.slices.probe.run import Probed as Probed, probe as probe
    from headscope.slices.repair.run import RepairedCopy as RepairedCopy, repair as repair

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept every name
    _NAMES_OF = {
        "shell.options.option": "DeviceName DrawingName ProfileName SeverityName",
        "slices.atlas.run": "heads Heads",
        "checks.run": "check",
        "slices.probe.coding": "code",
        "slices.compare.run": "compare Compared",
        "slices.diagram.run": "diagram",
        "slices.edit.run": "edit Edited",
        "slices.engines.run": "engines Engines",
        "slices.lookup.explaining": "explain Explained",
        "slices.forward.run": "forward Forwarded",
        "slices.inspect.run": "inspect",
        "slices.loaded.cards": "verify_card write_card",
        "slices.loaded.parameter_groups": "parameter_groups",
        "slices.loaded.save_verification": "verify_save",
        "slices.loaded.server_verification": "verify_served VerifiedServer",
        "slices.loaded.run": "verify Verified",
        "slices.loaded.strict": "strict StrictLoads",
        "slices.fleet.run": "scan scan_batch",
        "slices.probe.run": "probe Probed",
        "slices.repair.run": "repair RepairedCopy",
        "checks.checked": "Checked",
        "shared.report.examination": "Examination",
        "slices.lookup.snapshots": "snapshot Snapshot",
        "slices.inspect.weight_diff": "diff_weights",
        "checks.rules": "Ignore",
        "core.source.environment": "environment",
        "core.source.request": "Progress",
        "slices.fleet.facts": "ScanRow",
    }
    _MODULE_OF = {name: f"headscope.{module}" for module, names in _NAMES_OF.items() for name in names.split()}
    __all__ = list(_MODULE_OF)

    def __getattr__(name: str) -> object:
        """A public name, imported on first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'headscope.api' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_MODULE_OF[name]), name)
