"""Alias of `marl-ray doctor --gpu`, for use from the repository.

python -m benchmarks.gpu_check --out report.md
python -m benchmarks.gpu_check --cpu               # the checks that also work on a CPU
"""

from __future__ import annotations

import sys

from marl_ray.plugins.gpu_check.command import main

if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(main(arguments if "--cpu" in arguments else ["--gpu", *arguments]))
