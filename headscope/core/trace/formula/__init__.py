"""The formula from the hidden states to the scores."""
