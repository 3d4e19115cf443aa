"""Models in memory beside the checkpoints that they were loaded from or saved to."""
