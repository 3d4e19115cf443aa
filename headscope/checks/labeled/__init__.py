"""Rules on labels, and on labeled data beside a model."""
