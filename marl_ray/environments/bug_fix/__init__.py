"""Bug fix: a program with a bug is corrected, by an agent that finds the bug and agents that patch it.

`environment` has the whole in one view: rewards, and who does what. Then, in the order of a response's way: `prompts`
asks; `attempt` reads a joint action, by `program` (the buggy program and what patches make of it), `bug_report` (the
diagnosis) and `edits` (which lines a patch changes); `facts` are what feedback may say, and `feedback` puts them into
words.
"""

from __future__ import annotations

from marl_ray.environments.bug_fix.environment import BugFix, BugFixPatchers

__all__ = ["BugFix", "BugFixPatchers"]
