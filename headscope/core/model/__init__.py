"""Models that Transformers builds: the class, the skeleton on the meta device, the diff of weights."""
