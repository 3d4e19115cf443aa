"""The operations between the hidden states and the scores."""
