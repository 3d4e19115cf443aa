"""Checks names and words, and whether tests and answers notice a change."""
