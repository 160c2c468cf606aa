"""Branch replays against credit by runs, at equal runs of the program: two games in which agents talk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.learning.measures import read_lines
from benchmarks.learning.primary import Comparison
from benchmarks.learning.study import CONFIGS, FROZEN, JOINT, Arm, Study
from marl_ray.plugins.games import KUHN_BASE_PATH

ROOT = CONFIGS.parent
RUNS = {"gateway.credit": "runs", "magrpo.num_generations": 15}
"""As many runs per task as two replayed calls with eight siblings have."""
ONE_CALL = {"gateway.replayed_calls": 1, "magrpo.num_generations": 15}
"""The same, where the learning agent is called once per run."""


def learning_speed(run: Path, step: int, last: int) -> dict[str, float]:
    """Return the reward and each player's share of right answers, as means over all evaluations up to `step`."""
    found: dict[str, list[float]] = {}
    for row in read_lines(run / "metrics.jsonl"):
        for name in ("reward_mean", "first_right", "second_right"):
            key = f"eval/turn_1/{name}"
            if key in row and row["step"] <= step:
                found.setdefault(name, []).append(row[key])
    speed = {f"mean_{name}": round(fmean(values), 4) for name, values in found.items()}
    for name in ("first_right", "second_right"):
        speed[name] = round(found[name][-1], 4)
    return speed


RELAY = Study(
    name="relay",
    config=CONFIGS / "toy_relay.yaml",
    common={"output.episodes_per_step": 8},
    groups={
        "two cards are told and named": {
            JOINT: Arm("credit by runs", RUNS),
            "calls": Arm("branch replays of 2 of 4 calls", {}),
        }
    },
    files=(ROOT / "docs/examples/relay.py", ROOT / "docs/examples/relay_cards.jsonl", KUHN_BASE_PATH / "config.json"),
    columns={
        "mean_reward_mean": "reward, mean of evaluations",
        "reward": "reward",
        "first_right": "first right",
        "second_right": "second right",
    },
    compared=("mean_reward_mean", "reward"),
    drawn=("reward_mean", "reward"),
    extra_metrics=learning_speed,
    in_process=True,
)
"""Every call matters alike."""

_ONLY_SECOND = {"agents": f"[{FROZEN}, {{}}]"}
LOUD_RELAY = replace(
    RELAY,
    name="loud-relay",
    common={**RELAY.common, "gateway.function": "docs.examples.relay:play_loud"},
    groups={
        "both agents learn": {
            JOINT: Arm("both learn: by runs", RUNS),
            "calls": Arm("both learn: branch replays", {}),
        },
        "only the second learns": {
            "second": Arm("only the second learns: by runs", {**RUNS, **_ONLY_SECOND}),
            "second_calls": Arm("only the second learns: branch replays", {**ONE_CALL, **_ONLY_SECOND}),
        },
    },
    columns={
        "mean_second_right": "second right, mean of evaluations",
        "second_right": "second right",
        "first_right": "first right",
    },
    compared=("mean_second_right",),
    drawn=("second_right", "right answers of the second agent"),
)
"""The first answer counts five times, and is the message that the second agent needs."""

REPLAY_COMPARISONS = {
    RELAY.name: (Comparison("reward: branch replays, less runs", "calls", JOINT, "mean_reward_mean"),),
    LOUD_RELAY.name: (
        Comparison("second right: branch replays, less runs", "calls", JOINT, "mean_second_right"),
        Comparison("the same, only the second learns", "second_calls", "second", "mean_second_right"),
    ),
}
"""The comparisons that were named before their runs."""
