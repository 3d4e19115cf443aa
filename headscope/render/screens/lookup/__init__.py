"""Screens that look nothing up in a checkpoint: the atlas, the environment, the cache."""
