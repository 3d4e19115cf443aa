"""What is read of a checkpoint's configuration, and how its report is put together."""
