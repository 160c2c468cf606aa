"""A solver and testers: the solver's program has to pass, and the testers' tests have to find mistakes."""

from marl_ray.registry import PlugIn

PLUGIN = PlugIn(
    names={
        "environment": {"solver_tester": "marl_ray.plugins.solver_tester.environment:SolverTester"},
        "dataset.type": {"solver_tester": "marl_ray.plugins.solver_tester.rows:SOLVER_TESTER"},
    },
)
