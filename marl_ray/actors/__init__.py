"""What runs as a Ray actor, and how the driver holds it."""
