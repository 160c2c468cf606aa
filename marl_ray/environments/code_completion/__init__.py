"""Code completion: a class whose methods are shared out among agents, written side by side and merged back.

`environment` has the whole in one view: rewards, and who does what. Then, in the order of a response's way:
`strategies` shares the methods out; `prompts` asks; `extraction` finds methods in a response; `skeleton` merges them
into the class; `attempt` is a joint action, read; `concerns` says which tests are about which methods; `diagnosis`
makes facts of these and of the sandbox's report, and `feedback` puts them into words.
"""

from __future__ import annotations

from marl_ray.environments.code_completion.environment import CodeCompletion

__all__ = ["CodeCompletion"]
