"""A screen for each command."""
