"""The head on a screen: its path, tree, stages and token strip."""
