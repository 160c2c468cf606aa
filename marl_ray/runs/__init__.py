"""One run: its checks, folder, checkpoints and end."""
