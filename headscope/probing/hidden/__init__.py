"""Hidden states read from a model, and the vectors made of them."""
