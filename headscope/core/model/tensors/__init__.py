"""Values of tensors: read, measured, compared."""
