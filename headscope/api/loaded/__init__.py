"""`verify` and `verify_save`: what a loaded model or a save holds."""
