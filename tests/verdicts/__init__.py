"""Broken and healthy checkpoints: does each verdict agree with what the real libraries do with them?"""
