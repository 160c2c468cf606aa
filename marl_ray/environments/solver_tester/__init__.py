"""A solver and a test writer: who writes the tests has read the solution, and both earn by what the tests find.

`environment` has the whole in one view: rewards, and who does what. Then, in the order of a response's way: `prompts`
asks; `attempt` reads a joint action, by `written` (the tests in a response) and code generation's reading of a
solution; `findings` are what came of it, and `feedback` puts them into words.
"""

from __future__ import annotations

from marl_ray.environments.solver_tester.environment import SolverTester

__all__ = ["SolverTester"]
