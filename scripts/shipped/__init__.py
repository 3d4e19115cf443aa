"""Makes what the package ships: facts of classes, snapshots, the fitted health of heads."""
