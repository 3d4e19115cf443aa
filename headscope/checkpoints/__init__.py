"""Checkpoints, from what a user named to a manifest: local files, the Hub, snapshots. Doesn't use torch."""
