"""Changed copies of checkpoints: written, carried over, proven."""
