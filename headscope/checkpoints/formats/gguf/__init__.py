"""GGUF files: their tensors and their head."""
