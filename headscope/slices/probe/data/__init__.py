"""Labeled texts, images and sounds for a probe."""
