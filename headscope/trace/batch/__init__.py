"""Inputs on which a forward is recorded."""
