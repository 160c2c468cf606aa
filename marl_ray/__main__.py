"""`python -m marl_ray`, the same as `marl-ray`."""

import sys

from marl_ray.cli.main import main

sys.exit(main())
