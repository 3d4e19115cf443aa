"""Scores of an engine beside those of the checkpoint: classes by their names, and rounding."""
