"""Heads in the folders of other libraries: read from their settings and the headers of their tensors, not traced."""
