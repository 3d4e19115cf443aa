"""Words, lines and tables."""
