"""A card: reference scores of a checkpoint in one file, to compare engines with, without the checkpoint."""
