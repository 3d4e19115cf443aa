"""Labeled texts, images and sounds, as asked for."""
