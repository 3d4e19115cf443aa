"""`inspect` and `diff-weights`: one report on a screen."""
