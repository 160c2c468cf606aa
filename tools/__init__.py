"""Development tools, run from the root of the repository and not shipped."""
