"""What the files of one checkpoint contain: weights, adapters, tokenizers, the modules of sentence-transformers."""
