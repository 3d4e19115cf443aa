"""The formula of a head, and its evaluation."""
