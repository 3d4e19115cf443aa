"""The options of the use cases, each declared once for Python and for the command line; nothing slow is imported."""
