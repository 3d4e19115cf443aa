"""What rules need beside the report, read for `check` alone."""
