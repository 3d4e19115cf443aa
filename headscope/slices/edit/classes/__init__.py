"""Classes of a copy: names, rows, and what its scores become."""
