"""What is done for a release: versions, constraints, the archive."""
