"""Several checkpoints at once: the gate of `check`, `scan` and its batches."""
