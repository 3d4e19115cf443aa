"""`diagram`: the head as a picture."""
