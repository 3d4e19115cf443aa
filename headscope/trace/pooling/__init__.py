"""Ways in which the token axis disappears."""
