"""The command line, one file a command. What `--help` needs is light: commands import what they do when they do it."""
