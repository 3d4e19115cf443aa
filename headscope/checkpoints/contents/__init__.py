"""The contents of one checkpoint's files: weights, adapters, tokenizers, the modules of sentence-transformers."""
