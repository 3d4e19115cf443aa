"""`edit`: labels, scores and heads changed in a copy."""
