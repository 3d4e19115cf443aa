"""The states in which checkpoints lie on disks, each told by names and headers alone."""
