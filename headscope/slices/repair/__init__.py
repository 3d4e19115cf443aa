"""`repair`: a state of training made into a checkpoint."""
