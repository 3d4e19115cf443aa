"""`forward`: the head on real or dummy inputs."""
