"""Bug fix: one agent diagnoses the bug in a program, the others patch it.

`environment` defines rewards and roles, `prompts` the prompts. `attempt` parses a joint action, with `program` (the buggy
program, patches and line diffs). `feedback` describes the outcome to the agents.
"""

from __future__ import annotations

from marl_ray.environments.bug_fix.environment import BugFix, BugFixPatchers

__all__ = ["BugFix", "BugFixPatchers"]
