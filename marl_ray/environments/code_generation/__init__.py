"""Code generation: helper functions and a main function, written by different agents and joined into one program.

`environment` defines rewards and roles, `prompts` the prompts. `attempt` parses a joint action, with `extraction` (the
function in a response) and `usage` (how main uses the helpers). `feedback` describes the outcome to the agents.
"""

from __future__ import annotations

from marl_ray.environments.code_generation.environment import CodeGeneration

__all__ = ["CodeGeneration"]
