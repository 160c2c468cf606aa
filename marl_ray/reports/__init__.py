"""Reports of runs: the closing summary, the reward plot, episodes as text, and the HTML page."""
