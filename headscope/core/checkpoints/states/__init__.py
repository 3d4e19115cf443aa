"""States of training that aren't checkpoints yet: shards, wrapped keys, optimizers' files."""
