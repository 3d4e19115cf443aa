"""The run: a model loaded and called as its user calls it, with its own tokenizer or processor."""
