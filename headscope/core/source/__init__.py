"""A checkpoint or a model in memory, and what is found out about it on first use."""
