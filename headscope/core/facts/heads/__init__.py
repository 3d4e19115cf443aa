"""Facts on heads."""
