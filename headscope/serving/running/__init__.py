"""Engines that are run: the scripts that do it, their processes, and what is given to them."""
