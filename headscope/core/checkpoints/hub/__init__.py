"""Repositories on the Hub: requests, ranges, and what the Hub's cache holds."""
