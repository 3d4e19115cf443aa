"""Checkpoints of other libraries, which Transformers doesn't load: what they hold instead."""
