"""`python -m marl_ray.sandbox`: the same as `marl-ray sandbox`."""

import sys

from marl_ray.sandbox.command_line import main

sys.exit(main())
