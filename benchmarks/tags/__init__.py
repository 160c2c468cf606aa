"""Two SmolLM2-135M that divide a text between them, with controls: `python -m benchmarks.tags`."""
