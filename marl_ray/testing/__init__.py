"""Conformance checks for plug-ins of every kind (docs/reference/plugins.md).

Each check raises AssertionError with one line that describes the violation. The checks need no test framework, no model
and no cluster; docs/how-to/extend.md shows examples. `check_critic` loads a bundled model of 3 MB.
"""

from marl_ray.testing.datasets import check_dataset
from marl_ray.testing.environments import check_environment, check_mode
from marl_ray.testing.estimators import check_estimator
from marl_ray.testing.learning import check_critic, check_loss, check_optimizer
from marl_ray.testing.rollouts import check_handoff, check_joint_mode, check_sampler
from marl_ray.testing.sinks import check_sink

__all__ = [
    "check_critic",
    "check_dataset",
    "check_environment",
    "check_estimator",
    "check_handoff",
    "check_joint_mode",
    "check_loss",
    "check_mode",
    "check_optimizer",
    "check_sampler",
    "check_sink",
]
