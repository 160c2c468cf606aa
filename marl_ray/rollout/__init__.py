"""Generation actors and the episodes they play."""
