"""Rooms of the use cases: everything of one is in one folder."""
