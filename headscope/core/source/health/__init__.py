"""The classifier's values: whether training ever changed them."""
