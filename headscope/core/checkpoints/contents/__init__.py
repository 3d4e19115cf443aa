"""Facts in a checkpoint's files: weights, tokenizer, adapter, modules of sentence-transformers."""
