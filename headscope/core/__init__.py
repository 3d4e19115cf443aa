"""One checkpoint or model, and the report on it; doesn't know the use cases."""
