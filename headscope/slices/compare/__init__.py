"""`compare`: heads of several checkpoints side by side."""
