"""The numbers of tensors: read, compared, and what they show."""
