"""Code completion: agents write disjoint methods of a class, which are merged into one program.

`environment` defines rewards and roles, `strategies` assigns methods to agents, `prompts` asks for them. `attempt` parses a
joint action, with `extraction` (the methods in a response) and `skeleton` (the class). `feedback` describes the outcome.
"""

from __future__ import annotations

from marl_ray.environments.code_completion.environment import CodeCompletion

__all__ = ["CodeCompletion"]
