"""How the token axis disappears: which positions a head mixes. `replay/picks.py` says what an index means."""
