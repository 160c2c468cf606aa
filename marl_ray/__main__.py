"""Run `marl-ray` as `python -m marl_ray`."""

import sys

from marl_ray.cli.main import main

sys.exit(main())
