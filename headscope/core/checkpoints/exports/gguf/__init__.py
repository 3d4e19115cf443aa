"""GGUF files and the head that they hold."""
