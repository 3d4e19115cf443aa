"""Many checkpoints: where they come from, the workers that examine them, and the table they end in."""
