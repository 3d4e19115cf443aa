"""A model in memory, and the load that it comes from."""
