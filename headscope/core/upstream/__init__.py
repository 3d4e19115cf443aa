"""What others don't promise: a file for each project, each with a contract test."""
