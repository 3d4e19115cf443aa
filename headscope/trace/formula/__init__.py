"""Formulas of heads, and their evaluation."""
