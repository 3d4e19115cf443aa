"""What all commands share: the application, output, exit codes, options, and results that show themselves."""

from headscope.shell.app import main

__all__ = ["main"]
