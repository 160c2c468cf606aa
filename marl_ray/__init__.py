"""Reinforcement learning of several cooperating language models, distributed with Ray.

    import marl_ray as mr

The names of the Python API are imported on first use: `import marl_ray` imports neither torch nor Ray.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marl_ray.api import evaluate, load_run, score, train
    from marl_ray.core.errors import UserError
    from marl_ray.environments.reward import RewardEnvironment
    from marl_ray.results.run_results import Run

__version__ = "0.3.0"
__all__ = ["RewardEnvironment", "Run", "UserError", "evaluate", "load_run", "score", "train"]

_MODULES = {
    **dict.fromkeys(("evaluate", "load_run", "score", "train"), "marl_ray.api"),
    "RewardEnvironment": "marl_ray.environments.reward",
    "Run": "marl_ray.results.run_results",
    "UserError": "marl_ray.core.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
