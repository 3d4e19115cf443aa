"""A checkpoint examined: the load, the structure, the report."""
