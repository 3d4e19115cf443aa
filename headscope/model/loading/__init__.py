"""The load: Transformers' own, of an adapter, of quantized tensors."""
