"""Libraries that may not be installed."""
