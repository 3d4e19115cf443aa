"""Output of `probe`: its screen, its picture and its code."""
