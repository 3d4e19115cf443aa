"""The use cases that look something up, without a checkpoint or beside it."""
