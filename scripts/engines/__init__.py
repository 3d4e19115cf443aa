"""Runs engines on every class, and writes what they computed."""
