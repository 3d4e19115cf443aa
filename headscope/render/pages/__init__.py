"""Whole pages and reports: scans, continuous integration."""
