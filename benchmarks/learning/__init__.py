"""Studies that compare joint training with other ways to train: `python -m benchmarks.learning`."""
