"""File formats, each read without the library that wrote it."""
