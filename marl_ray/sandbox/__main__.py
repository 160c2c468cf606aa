"""`python -m marl_ray.sandbox`: the same as `marl-ray sandbox`."""

import sys

from marl_ray.sandbox.cli import main

sys.exit(main())
