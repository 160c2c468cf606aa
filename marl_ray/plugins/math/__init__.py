"""Problems with one short answer, for a solver and verifiers, and for solvers that debate."""

from pathlib import Path

from marl_ray.registry import PlugIn

ARITHMETIC_PATH = Path(__file__).parent / "arithmetic.jsonl"
MATH_BASE_PATH = Path(__file__).parent / "base"

PLUGIN = PlugIn(
    names={
        "environment": {
            "math": "marl_ray.plugins.math.solver_verifier:SolverVerifier",
            "math_debate": "marl_ray.plugins.math.debate:Debate",
        },
        "dataset.type": {"math": "marl_ray.plugins.math.rows:MATH"},
    },
    types_by_name={"gsm8k": "math", "math": "math", "bundled:arithmetic": "math"},
    rows={"bundled:arithmetic": ARITHMETIC_PATH},
    models={"bundled:toy-math-base": MATH_BASE_PATH},
    sections={"math": "marl_ray.plugins.math.options:MathConfig"},
)
