"""Hidden states, computed once and kept."""
