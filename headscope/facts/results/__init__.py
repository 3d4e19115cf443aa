"""What the commands return."""
