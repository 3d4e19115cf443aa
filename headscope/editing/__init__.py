"""A changed copy of a checkpoint: a plan of its classes, the tensors that follow, the files, and a proof."""
