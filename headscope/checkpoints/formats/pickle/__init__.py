"""Pickles, interpreted and never run."""
