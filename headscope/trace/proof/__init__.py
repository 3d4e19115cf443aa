"""Proofs of what is claimed: by gradients, by other inputs, in a second run."""
