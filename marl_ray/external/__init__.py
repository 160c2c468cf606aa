"""The prompts of all turns but the first: `transition` composes them from the messages of a mode in `modes`.

The expert model of `modes` and the judge model of `llm_judge` are asked through `client` at one of `endpoints`. The
wording of feedback is part of each environment.
"""

from __future__ import annotations

from marl_ray.registry import Registry

MODES = Registry(
    "external.mode",
    {
        "level_feedback": "marl_ray.external.modes:Feedback",
        "level_passed": "marl_ray.external.modes:Feedback",
        "passed": "marl_ray.external.modes:Feedback",
        "plain": "marl_ray.external.modes:Plain",
        "expert_edits": "marl_ray.external.modes:ExpertEdits",
    },
    member="messages",
)
