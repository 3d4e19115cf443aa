"""The use cases, one file each. Importing them imports neither torch nor transformers."""

from headscope.api.arguments import DeviceName, DrawingName, ProfileName, SeverityName
from headscope.api.atlas import heads
from headscope.api.checking import check
from headscope.api.comparing import compare
from headscope.api.drawing import diagram
from headscope.api.explaining import explain
from headscope.api.forward_pass import forward
from headscope.api.inspection import inspect
from headscope.api.loaded.save_verification import verify_save
from headscope.api.loaded.verification import verify
from headscope.api.many.batches import scan_batch
from headscope.api.many.scanning import scan
from headscope.api.probing import probe
from headscope.api.results.shown import (
    Checked,
    Compared,
    Examination,
    Explained,
    Forwarded,
    Heads,
    Probed,
    Snapshot,
    Verified,
)
from headscope.api.snapshots import snapshot
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
    "check",
    "compare",
    "diagram",
    "diff_weights",
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
]
