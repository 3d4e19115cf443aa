"""Rooms of the use cases; they don't import each other, but for `inspect`."""
