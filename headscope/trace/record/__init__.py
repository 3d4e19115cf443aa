"""Runs of a forward, recorded operation by operation."""
