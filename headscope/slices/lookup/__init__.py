"""`explain`, `snapshot`, `env`, `cache`."""
