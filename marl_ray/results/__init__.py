"""The results of a run: its closing summary, the plot of its rewards, a diagnosis, and `Run` for Python programs."""
