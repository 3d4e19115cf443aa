"""What inference engines do with the head of a checkpoint, from what was read in their sources."""
