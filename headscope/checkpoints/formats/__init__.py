"""The formats of weight files, each read as far as names, shapes and types go."""
