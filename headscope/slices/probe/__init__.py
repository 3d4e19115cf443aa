"""`probe` and `code`: hidden states and heads fitted on them."""
