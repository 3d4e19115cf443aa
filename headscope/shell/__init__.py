"""The command line: parse, call, print, exit code. One file per command; no logic."""

from headscope.shell.app import main

__all__ = ["main"]
