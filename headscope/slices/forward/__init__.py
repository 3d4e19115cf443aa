"""`forward`: the head on real or invented inputs."""
