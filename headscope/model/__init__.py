"""From a manifest and a task to a class, a skeleton on the meta device, and the weight diff."""
