"""What headscope relies on that other projects don't promise, or get wrong: a file per project, a test per surface."""
