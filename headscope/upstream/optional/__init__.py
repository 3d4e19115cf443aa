"""Libraries that are used only where they are installed."""
