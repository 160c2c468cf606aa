"""Code generation: helpers and a main function, written side by side and joined into one program.

`environment` has the whole in one view: rewards, and who does what. Then, in the order of a response's way:
`prompts` asks; `attempt` reads a joint action, by `extraction` (the code in a response) and `usage` (how main uses the
helpers); `evidence` keeps the
sandbox's report; `diagnosis` makes facts of both, and `feedback` puts them into words.
"""

from __future__ import annotations

from marl_ray.environments.code_generation.environment import CodeGeneration

__all__ = ["CodeGeneration"]
