"""Tables of scanned models: files that grow, models read from a table."""
