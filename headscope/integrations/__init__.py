"""Where pipelines live: a callback for `transformers.Trainer`, and a plugin for pytest."""
