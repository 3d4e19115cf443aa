"""Proofs of the pooling and the formula, by gradients and on other inputs."""
