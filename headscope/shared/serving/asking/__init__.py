"""Requests for scores to a running server."""
