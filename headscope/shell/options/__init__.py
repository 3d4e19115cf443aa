"""Options that use cases share, each declared once."""
