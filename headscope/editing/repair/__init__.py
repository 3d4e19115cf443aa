"""A repaired copy of a checkpoint: the states that headscope names, repaired one after the other and proven."""
