"""`heads`: the heads of all classes."""
