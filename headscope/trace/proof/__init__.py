"""What is claimed is tried: by gradients, by other inputs, in a second run."""
