"""Models in memory: what they are, where their numbers come from, how they move."""
