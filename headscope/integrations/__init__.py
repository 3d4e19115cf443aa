"""Pipelines: callbacks for the Trainer and Lightning, and a plugin for pytest."""
