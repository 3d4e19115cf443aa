"""Output about the head: its path, its stages, its tokens."""
