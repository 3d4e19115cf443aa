"""Labeled data: files of rows, read as streams, and what is in their columns of labels. Runs nothing from them."""
