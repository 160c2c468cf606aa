"""Solver and testers: testers read the solution and write tests of it, and both sides earn from a correct judgement.

`environment` defines rewards and roles, `prompts` the prompts. `attempt` parses a joint action. `feedback` has the verdicts
on the written tests, and describes the outcome to the agents.
"""

from __future__ import annotations

from marl_ray.environments.solver_tester.environment import SolverTester

__all__ = ["SolverTester"]
