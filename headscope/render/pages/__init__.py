"""Whole pages and reports: notebooks, scans, continuous integration."""
