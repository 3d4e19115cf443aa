"""How the token axis disappears."""
