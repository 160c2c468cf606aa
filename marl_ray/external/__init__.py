"""What agents read from the second turn on: external modes, and the composition of later prompts.

`transition` composes prompts from the messages of a mode in `modes`. `expert` (edits) and `llm_judge` (rewards) ask other
models through `client` at one of `endpoints`. The wording of feedback is part of each environment.
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
