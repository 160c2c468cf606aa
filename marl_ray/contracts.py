"""The former place of the checks for plug-ins, which are in `marl_ray.testing`."""

import warnings

from marl_ray.testing import *  # noqa: F403

warnings.warn("marl_ray.contracts is now marl_ray.testing: import from there", DeprecationWarning, stacklevel=2)
