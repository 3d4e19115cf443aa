"""From what a user named to a manifest: local files, the Hub, snapshots. Knows no torch."""

from headscope.checkpoints.reading import read_manifest
from headscope.checkpoints.snapshot import bundled_snapshots, snapshot_text, write_snapshot

__all__ = ["bundled_snapshots", "read_manifest", "snapshot_text", "write_snapshot"]
