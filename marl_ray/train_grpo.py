"""Train with grpo: `python -m marl_ray.train_grpo --config FILE`. The file also works as a script."""

import sys
from pathlib import Path

if __package__ in (None, ""):  # run as a script: put the parent of the package on the path, not the package
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from marl_ray.cli.train import train_main


def main() -> int:
    """Run the command and return its exit code."""
    return train_main("grpo")


if __name__ == "__main__":
    sys.exit(main())
