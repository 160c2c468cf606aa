"""What a run asks of a Ray cluster, and how it gets it: the plan, places, a Ray of our own."""
