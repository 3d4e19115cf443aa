"""A loaded model or a save, compared with what is stored."""
