"""`check`: rules on one checkpoint or model, for use in a pipeline."""
