"""Writes the pages of the docs that follow from the code."""
