"""Broken and healthy checkpoints: whether every verdict agrees with what the real libraries do when they load and run them."""
