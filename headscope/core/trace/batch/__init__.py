"""Inputs of a traced forward."""
