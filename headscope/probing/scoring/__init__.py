"""Scores of vectors: solvers, measures, intervals, rivals."""
