"""The model called as its user calls it, and its head tried with its own weights."""
