"""Inference engines: cited facts, requests to servers, runs, and what their scores show."""
