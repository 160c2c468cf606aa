"""What people look at afterwards: the plot, episodes to read, and the lines that close a run."""
