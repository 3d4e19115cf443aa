"""The head: its path, its stages, its tokens."""
