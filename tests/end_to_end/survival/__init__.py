"""Real runs on a cluster of several nodes, while something of it is killed."""
