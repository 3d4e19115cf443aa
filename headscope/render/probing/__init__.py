"""Everything that `probe` shows."""
