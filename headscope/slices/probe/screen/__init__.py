"""What `probe` shows, and code that it writes."""
