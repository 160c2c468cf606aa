"""Self-play of tiny policies in Kuhn poker and tic-tac-toe: `python -m benchmarks.games`."""
