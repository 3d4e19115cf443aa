"""The states in which checkpoints are on disks, each told by names and headers alone."""
