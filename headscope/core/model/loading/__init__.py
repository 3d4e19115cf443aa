"""Weights that Transformers' and PEFT's own loaders give a model."""
