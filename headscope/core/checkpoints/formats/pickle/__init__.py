"""Pickles, read without running them."""
