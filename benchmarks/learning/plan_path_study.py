"""Planner and checker in rooms of 4 x 4 cells: against one agent with as many tokens and turns, in rooms of paths and
of one box (studies plan-path, plan-path-boxes), and with kinds of credit (study plan-path-credit). This module prints
the best constants.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.learning.measures import read_lines
from benchmarks.learning.primary import Comparison
from benchmarks.learning.study import CONFIGS, JOINT, Arm, Study
from marl_ray.plugins.plan_path import PLAN_PATH_BASE_PATH, generate
from marl_ray.plugins.plan_path.environment import best_constant, plan_levels
from marl_ray.plugins.plan_path.rooms import read_room

ONE_AGENT = {"magrpo.num_agents": 1, "magrpo.num_generations": 16}
"""As many answers to learn from as the pair: 16 of one agent instead of 8 of each."""

FOUR_TURNS = {"magrpo.num_turns": 4, "magrpo.rollout_buffer_size": 8}
"""Twice the turns of half of the rooms."""

LONGEST = 5
"""Maximum moves of constants; shortest solutions of the held-out rooms have 2 to 6."""


def checks(run: Path, step: int, last: int) -> dict[str, float]:
    """Return how the last turn of an evaluation was planned and checked: the plug-in's metrics."""
    found = {}
    for row in read_lines(run / "metrics.jsonl"):
        if row["step"] != step or "eval/turn_1/reward_mean" not in row:
            continue
        for name in ("planned", "shortest", "confirmed", "mended", "broken"):
            key = f"eval/turn_{last}/{name}"
            if key in row:
                found[name] = round(row[key], 4)
    return found


PLAN_PATH = Study(
    name="plan-path",
    config=CONFIGS / "toy_plan_path.yaml",
    common={"output.episodes_per_step": 128},
    groups={
        "planner and checker": {
            JOINT: Arm("a planner and a checker, 2 turns", {}),
            "shared": Arm("the same, with one policy", {"magrpo.policy": 0}),
            "single": Arm("one agent, 2 turns, as many tokens", ONE_AGENT),
            "single_turns": Arm("one agent, 4 turns, as many answers", {**ONE_AGENT, **FOUR_TURNS}),
        }
    },
    files=(PLAN_PATH_BASE_PATH / "model.safetensors", Path(generate.__file__)),
    columns={
        "reward": "reward in the last turn",
        "first_passed": "solved in turn 1",
        "passed": "solved in the last turn",
        "shortest": "in the fewest moves",
        "planned": "planner's own plan solves",
        "confirmed": "confirmed",
        "mended": "mended",
        "broken": "broken",
    },
    compared=("reward", "passed"),
    drawn=("all_passed", "rooms solved in the last turn"),
    extra_metrics=checks,
    in_process=True,
)

COMPARISONS = (
    Comparison("the pair, less one agent with as many turns and tokens", JOINT, "single"),
    Comparison("the pair, less one agent with as many answers in 4 turns", JOINT, "single_turns"),
    Comparison("separate policies, less one policy for both", JOINT, "shared"),
)
"""Share of rooms that are solved in the last turn. The first comparison is the primary one."""


BOXES_BASE = "learning/plan-path-boxes"


def _make_boxes_base(folder: Path) -> None:
    from tools.toy.make_plan_path import BOXES_4, make_room_base

    # A third of these steps leaves a policy that solves 5 % of the rooms, as many as the best constant.
    make_room_base(folder, BOXES_4, steps=8000, count=60000)


PLAN_PATH_BOXES = replace(
    PLAN_PATH,
    name="plan-path-boxes",
    common={
        "output.episodes_per_step": 200,
        "dataset.name": "python:marl_ray.plugins.plan_path.generate:BOXES",
        "model.name": BOXES_BASE,
        "magrpo.max_new_tokens": 20,
        "magrpo.max_steps": 60,
        "magrpo.save_steps": 60,
    },
    files=(Path(generate.__file__),),
    models={BOXES_BASE: _make_boxes_base},
)
"""The same arms in rooms of Sokoban, with more steps and longer answers."""

PLAN_PATH_CREDIT = replace(
    PLAN_PATH,
    name="plan-path-credit",
    common={
        **PLAN_PATH.common,
        "magrpo.num_turns": 1,
        "environment": "gateway",
        "gateway.reward": "judge",
        "gateway.judge": "plan_path",
    },
    groups={
        "15 runs of a turn per room and step": {
            JOINT: Arm("credit by runs", {"magrpo.num_generations": 15}),
            "calls": Arm("branch replays of both calls", {"gateway.credit": "calls"}),
            "removal": Arm(
                "difference reward, agents removed",
                {"magrpo.num_generations": 5, "magrpo.estimator": "centred_difference"},
            ),
            "turns": Arm("groups of the environment itself", {"environment": "plan_path"}),
        }
    },
    columns={
        "reward": "reward",
        "passed": "solved",
        "planned": "planner's own plan solves",
        "confirmed": "confirmed",
        "mended": "mended",
        "broken": "broken",
    },
    compared=("reward", "passed", "mended"),
    drawn=("all_passed", "rooms solved"),
)
"""One turn of the same rooms, with as many joint answers in every arm: 15, 1 + 2 x 7, 5 + 5 x 2, and 7 + 8."""

CREDIT_COMPARISONS = (
    Comparison("solved: branch replays, less credit by runs", "calls", JOINT),
    Comparison("solved: agents removed, less credit by runs", "removal", JOINT),
    Comparison("mended: agents removed, less credit by runs", "removal", JOINT, "mended"),
)
"""The comparisons that were named before their runs."""


def main() -> None:
    """Print the best constant of the held-out rooms with paths and with boxes."""
    for source in (generate.SMALL_PATHS, generate.BOXES):
        rooms = [read_room(row["room"]) for row in source.splits["eval"]]
        plan, reward = best_constant(rooms, LONGEST)
        solved = fmean(plan_levels(room, plan)["solved"] for room in rooms)
        print(f"{' '.join(plan)}: reward {reward:.2f} of 2.5, solves {solved:.0%} of {len(rooms)} rooms")


if __name__ == "__main__":
    main()
