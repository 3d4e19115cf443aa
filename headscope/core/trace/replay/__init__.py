"""The head, run again on other hidden states."""
