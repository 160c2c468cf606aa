"""Command line with one module per command. Commands import heavy packages only when they run, so `--help` is fast."""
