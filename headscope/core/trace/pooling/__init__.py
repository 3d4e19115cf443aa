"""The rule by which a head picks or mixes positions."""
