"""What is run by hand, from the repository's root, and not shipped."""
