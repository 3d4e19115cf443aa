"""`verify`, `verify_save`, `parameter_groups`: a model in memory, a save or a server beside the checkpoint."""
