"""Rules on labeled data."""
