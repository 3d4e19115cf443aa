"""Facts on exported models."""
