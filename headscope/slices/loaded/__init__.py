"""`verify`: a model in memory, a save or a server beside the checkpoint."""
