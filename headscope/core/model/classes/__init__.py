"""The class that a checkpoint asks for, and its configuration."""
