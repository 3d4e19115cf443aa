"""Markup and plots of pictures."""
