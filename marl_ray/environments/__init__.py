"""Environments: the roles, prompts, rewards and feedback of each kind of task.

`base` defines the protocol, `execution` what environments that run code share, `code_generation` is the environment of
functions with helpers, and `reward` the one of reward functions. Plug-ins add others (`marl_ray/plugins/`).
"""

from __future__ import annotations

from marl_ray.registry import Registry

ENVIRONMENTS = Registry(
    "environment",
    {"code_generation": "marl_ray.environments.code_generation:CodeGeneration"},
    member="from_config",
)
