"""Places of checkpoints, opened by their references, and the manifests read of them."""
