"""What the use cases return, and how it is shown and turned into tables."""
