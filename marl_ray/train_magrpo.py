"""Train with magrpo: `python -m marl_ray.train_magrpo --config FILE`, or this file as a script."""

import sys
from pathlib import Path

if __package__ in (None, ""):  # run by path: import the package this file is in, not its neighbours
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from marl_ray.cli.train import train_main


def main() -> int:
    """Entry point."""
    return train_main("magrpo")


if __name__ == "__main__":
    sys.exit(main())
