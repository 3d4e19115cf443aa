"""Text, lines and documents that every screen uses."""
