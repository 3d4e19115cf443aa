"""What `probe` returns: the vectors and their scores, and facts on the labeled data."""
