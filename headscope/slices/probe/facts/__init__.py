"""Facts on probes."""
