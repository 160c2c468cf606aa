"""The compared ways to give credit, each at several numbers of agents and learning rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.learning.studies import CONFIGS, Arm, Study
from benchmarks.roll_call.crossing import GROUP, TASKS
from marl_ray.plugins.roll_call import CALLS_PATH, ROLL_CALL_BASE_PATH

RATES = (3e-4, 8e-4, 2e-3)


@dataclass(frozen=True, slots=True)
class Trial:
    """Seeds that choose the rate of a cell, whose runs no table shows, and seeds that are measured at this rate."""

    choice: tuple[int, ...]
    measured: tuple[int, ...]


FIRST = Trial((101, 102), tuple(range(1, 9)))
AGAIN = Trial((111, 112, 113, 114), tuple(range(11, 19)))
"""Shared and difference reward once more: two seeds were too few to choose a rate."""
STEPS = 256

SHARED = Arm("shared reward", {"magrpo.estimator": "magrpo"})
DIFFERENCE = Arm("difference", {"magrpo.estimator": "centred_difference", "magrpo.counterfactual": "empty"})
OWN = Arm("own row (oracle)", {"magrpo.estimator": "magrpo", "roll_call.own": True})
_ONE_POLICY = {"magrpo.policy": 0}
_WORST = {"roll_call.team": "worst"}
_SIBLINGS = {"magrpo.counterfactual": "siblings"}
CREDITS: Mapping[str, tuple[Arm, tuple[int, ...]]] = {
    "shared": (SHARED, (2, 4, 8)),
    "difference": (DIFFERENCE, (2, 4, 8)),
    "own": (OWN, (2, 4, 8)),
    "shapley": (Arm("Shapley value", {"magrpo.estimator": "shapley"}), (2, 4)),
    "shared_one_policy": (Arm("shared reward, one policy", {**SHARED.overrides, **_ONE_POLICY}), (8,)),
    "difference_one_policy": (Arm("difference, one policy", {**DIFFERENCE.overrides, **_ONE_POLICY}), (8,)),
    "worst_shared": (Arm("worst writer: shared reward", {**SHARED.overrides, **_WORST}), (4, 8)),
    "worst_difference": (
        Arm("worst writer: difference, siblings", {**DIFFERENCE.overrides, **_WORST, **_SIBLINGS}),
        (4, 8),
    ),
    "worst_own": (Arm("worst writer: own row (oracle)", {**OWN.overrides, **_WORST}), (4, 8)),
}
"""Each way to give credit, with the numbers of agents."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A way to give credit to a number of agents."""

    name: str
    title: str
    agents: int

    def arm(self, rate: float) -> str:
        """Return the name of the cell's arm at a learning rate."""
        return f"{self.name}@{rate:g}"


CELLS: dict[str, Cell] = {}
"""By name."""
_GROUPS: dict[str, dict[str, Arm]] = {}
for _credit, (_arm, _counts) in CREDITS.items():
    for _agents in _counts:
        _cell = Cell(f"{_credit}_{_agents}", _arm.title, _agents)
        CELLS[_cell.name] = _cell
        _GROUPS[_cell.name] = {}
        for _rate in RATES:
            _settings = {**_arm.overrides, "magrpo.num_agents": _agents, "magrpo.learning_rate": _rate}
            _GROUPS[_cell.name][_cell.arm(_rate)] = Arm(_arm.title, _settings)

ROLL_CALL = Study(
    name="roll-call",
    config=CONFIGS / "toy_roll_call.yaml",
    common={
        "magrpo.max_steps": STEPS,
        "magrpo.rollout_buffer_size": TASKS,
        "magrpo.num_generations": GROUP,
    },
    groups=_GROUPS,
    files=(CALLS_PATH, ROLL_CALL_BASE_PATH / "model.safetensors"),
    columns={},
    compared=(),
    drawn=("reward_mean", "reward"),
)
"""One arm per cell and learning rate."""
