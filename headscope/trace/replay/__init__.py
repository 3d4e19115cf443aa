"""Runs of a recorded head on other numbers."""
