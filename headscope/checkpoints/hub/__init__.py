"""Checkpoints on the Hub, through the official client: never the weights, only the headers in front of them."""
