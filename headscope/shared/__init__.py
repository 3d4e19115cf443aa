"""What two use cases or more use, and no core."""
