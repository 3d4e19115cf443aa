"""Several checkpoints: the gate of `check`, `scan` and its batches."""
