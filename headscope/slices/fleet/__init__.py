"""`scan`: many checkpoints."""
