"""What the agents read from the second turn on: external modes, and how later prompts are composed.

`transition` composes prompts of what a mode says; `modes` has the modes; `expert` asks another model, and `judge` too,
for rewards, by `client` at one of `endpoints`. What the words are about is the environment's.
"""

from __future__ import annotations

from marl_ray.plugins import Registry

MODES = Registry(
    "external.mode",
    {
        "level_feedback": "marl_ray.external.modes:Feedback",
        "level_passed": "marl_ray.external.modes:Feedback",
        "passed": "marl_ray.external.modes:Feedback",
        "plain": "marl_ray.external.modes:Plain",
        "expert_edits": "marl_ray.external.modes:ExpertEdits",
    },
    needs="messages",
)
