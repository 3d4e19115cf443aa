"""Fitted heads: scores, intervals, comparisons."""
