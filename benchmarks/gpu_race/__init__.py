"""A race on one GPU that takes ten minutes: `python -m benchmarks.gpu_race`."""
