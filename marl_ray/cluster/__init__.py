"""What a run asks of the cluster, and the actors that get it."""
