"""What a kind of task means: roles, prompts, how responses join into one attempt, rewards, words of feedback.

`base` has the protocol, each folder one environment.
"""

from __future__ import annotations

from marl_ray.plugins import Registry

ENVIRONMENTS = Registry(
    "environment",
    {
        "code_generation": "marl_ray.environments.code_generation:CodeGeneration",
        "code_completion": "marl_ray.environments.code_completion:CodeCompletion",
        "bug_fix": "marl_ray.environments.bug_fix:BugFix",
        "bug_fix_patchers": "marl_ray.environments.bug_fix:BugFixPatchers",
        "solver_tester": "marl_ray.environments.solver_tester:SolverTester",
    },
    needs="from_config",
)
