"""Facts on heads: their path, their positions, their task."""
