"""What is joint training worth? Studies of many runs each, their tables and curves: `python -m benchmarks.learning`."""
