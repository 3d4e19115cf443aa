"""Engines that are installed, each run in a separate process."""
