"""The studies of letter grids: feedback, private halves, messages without demonstrations, and falls."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.learning.measures import read_lines
from benchmarks.learning.primary import Comparison
from benchmarks.learning.study import CONFIGS, FROZEN, JOINT, Arm, Study
from marl_ray.plugins.grid import GRID_BASE_PATH, GRIDS_PATH
from marl_ray.plugins.grid.attempt import read_rows

PLAIN = {"external.mode": "plain"}
GRID = Study(
    name="grid",
    config=CONFIGS / "toy_grid.yaml",
    common={"output.episodes_per_step": 128},
    groups={"feedback": {JOINT: Arm("told every mark", {}), "plain": Arm("told nothing", PLAIN)}},
    files=(GRIDS_PATH, GRID_BASE_PATH / "model.safetensors"),
    columns={
        "reward": "reward in turn 3",
        "first_cells": "right cells in turn 1",
        "cells": "right cells in turn 3",
        "passed": "complete",
    },
    compared=("reward", "cells"),
    drawn=("cells_right", "right cells in turn 3"),
)
"""A task in which only feedback can help, since no prompt tells the target."""

GRID_PRIVATE = Study(
    name="grid-private",
    config=CONFIGS / "toy_grid_private.yaml",
    common={"output.episodes_per_step": 128},
    groups={
        "private halves": {
            JOINT: Arm("a pair, each with one half", {}),
            "plain": Arm("the same, told nothing", PLAIN),
            "single": Arm("one agent with one half", {"magrpo.num_agents": 1, "magrpo.num_generations": 6}),
            "slow": Arm("a pair, a third of the rate", {"magrpo.learning_rate": 3.3e-4}),
        }
    },
    files=(GRIDS_PATH, GRID_BASE_PATH / "model.safetensors"),
    columns={
        "first_reward": "reward in turn 1",
        "reward": "reward in turn 2",
        "cells": "right cells in turn 2",
        "passed": "complete",
        "pass@2": "pass@2 of first answers",
        "keep_rate": "kept",
        "fix_rate": "mended",
    },
    compared=("reward", "cells"),
    drawn=("reward_mean", "reward in turn 2"),
)
"""A task that no agent can solve alone: each agent knows the half that the other one has to write."""
MADE: Mapping[str, tuple[str, float, float]] = {
    "chance": ("learning/grid-tell-0", 0.0, 0.0),
    "tenth": ("learning/grid-tell-0.1", 0.1, 1.0),
    "throughout": ("learning/grid-tell-0.1-throughout", 0.1, 0.1),
}
"""Base policies that the study trains on demand: folder below the repository, and the shares of noisy and of clean
demonstrations that tell."""
TITLES = {
    "chance": "told at chance",
    "tenth": "told in 0.1",
    "half": "told in 0.5",
    "throughout": "told in 0.1 throughout",
}
SINGLE = {"magrpo.num_agents": 1, "magrpo.num_generations": 6}


def _base_maker(tell: float, clean_tell: float) -> Callable[[Path], None]:
    from tools.toy.make_grid import make_grid_base

    return partial(make_grid_base, tell=tell, clean_tell=clean_tell)


def told(run: Path, step: int, last: int) -> dict[str, float]:
    """Return the mean over both agents of `told_in` in the evaluation after `step`."""
    nodes = []
    for episode in read_lines(run / "episodes.jsonl"):
        if (episode["kind"], episode["step"]) == ("eval", step):
            nodes.append(episode["nodes"][0])
    agents = range(len(nodes[0]["prompts"]))
    return {"told": round(statistics.fmean(told_in(nodes, agent) for agent in agents), 4)}


def told_in(nodes: Sequence[Mapping[str, Any]], agent: int) -> float:
    """Return the share of an agent's first answers that are exactly the rows in their prompt. Chance is 1 / 27 for a
    row of three of three letters."""
    hits = []
    for node in nodes:
        rows = re.findall(r"should be: (.*)", node["prompts"][agent])
        shown = [row.replace(" ", "") for row in rows]
        for response in node["responses"][agent]:
            hits.append(read_rows(response, len(shown), len(shown[0]), "abc") == shown)
    return statistics.fmean(hits)


def _arms(base: str) -> dict[str, Arm]:
    """Return the arms of a base policy."""
    common: dict[str, Any] = {"model.name": MADE[base][0]} if base in MADE else {}
    title = TITLES[base]
    pair = JOINT if base == "chance" else f"{base}_pair"
    arms = {
        pair: Arm(f"{title}: a pair", common),
        f"{base}_one": Arm(f"{title}: only one learns", {**common, "agents": f"[{{}}, {FROZEN}]"}),
        f"{base}_plain": Arm(f"{title}: a pair, told nothing", {**common, **PLAIN}),
        f"{base}_shared": Arm(f"{title}: one policy for both", {**common, "magrpo.policy": 0}),
    }
    if base == "throughout":
        return {name: arms[name] for name in (pair, f"{base}_plain")}
    reader = "open" if base == "chance" else f"{base}_open"
    overrides = {**common, **SINGLE, "environment": "benchmarks.learning.open_grid:OpenGrid"}
    arms[reader] = Arm(f"{title}: one agent that reads both halves", overrides)
    return arms


GRID_TELLING = replace(
    GRID_PRIVATE,
    name="grid-telling",
    common={
        "output.episodes_per_step": 128,
        "magrpo.max_steps": 100,
        "magrpo.save_steps": 100,
        "magrpo.eval_interval": 50,
        "magrpo.learning_rate": 3.3e-4,
    },
    groups={title: _arms(base) for base, title in TITLES.items()},
    columns={
        "told": "tells in turn 1",
        "first_reward": "reward in turn 1",
        "reward": "reward in turn 2",
        "cells": "right cells in turn 2",
    },
    compared=(),
    extra_metrics=told,
    learned=1.0,
    models={folder: _base_maker(*shares) for folder, *shares in MADE.values()},
    in_process=True,
)
"""Messages that no demonstration has shown."""

GRID_FALLS = replace(
    GRID_PRIVATE,
    name="grid-falls",
    common={"output.episodes_per_step": 128, "magrpo.eval_interval": 10},
    groups={
        "size of the steps": {
            JOINT: Arm("a pair, as the config", {}),
            "slow": Arm("a third of the rate", {"magrpo.learning_rate": 3.3e-4}),
            "clip": Arm("max_grad_norm 0.1", {"magrpo.max_grad_norm": 0.1}),
            "no_momentum": Arm("adam_beta1 0", {"magrpo.adam_beta1": 0.0}),
            "short_memory": Arm("adam_beta2 0.9", {"magrpo.adam_beta2": 0.9}),
            "whitened": Arm("normalize_advantages", {"magrpo.normalize_advantages": True}),
        },
        "disagreement": {
            "entropy": Arm("entropy_coef 0.05", {"magrpo.entropy_coef": 0.05}),
            "kl": Arm(
                "reference_kl_coef 0.02, in the loss",
                {"magrpo.reference_kl_coef": 0.02, "magrpo.reference_kl": "k2_in_loss"},
            ),
            "dynamic": Arm("dynamic_sampling", {"magrpo.dynamic_sampling": True}),
        },
    },
    columns={"first_reward": "reward in turn 1", "reward": "reward in turn 2", "passed": "complete", "told": "tells"},
    compared=("reward",),
    extra_metrics=told,
    in_process=True,
)
"""Falls of separate policies from their peak, and settings that may prevent them."""
FURTHER_SEEDS = range(9, 41)
FALL_COMPARISONS = (
    Comparison("without momentum, less the config", "no_momentum", JOINT, "falls"),
    Comparison("with the KL term, less the config", "kl", JOINT, "falls"),
    Comparison("with normalize_advantages, less the config", "whitened", JOINT, "falls"),
)
"""Share of the further seeds that fall. The comparisons were named before the runs of their first arms."""
