"""The slice of the operations from the hidden states to the scores."""
