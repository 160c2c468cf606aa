"""Look into one run of private letter grids step by step: skills, disagreement, and the sizes of Adam's updates.

    mkdir updates
    UPDATE_SIZES=updates python -m marl_ray train magrpo --config configs/toy_grid_private.yaml --override \\
        output.run_name=falling output.episodes_per_step=128 magrpo.eval_interval=10 \\
        magrpo.optimizer=benchmarks.learning.fall:adamw
    python -m benchmarks.learning.fall runs/falling updates > docs/results/learning/grid-fall-seed-1.jsonl
    python -m benchmarks.learning.fall docs/results/learning/grid-fall-seed-1.jsonl

The first command trains and records each update, the second prints a row per step, and the third a table of some steps.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.learning.grid_studies import told_in
from benchmarks.learning.measures import read_lines
from marl_ray.config import OptimizerConfig

SHOWN = (1, 2, 5, 7, 10, 14, 16, 17, 18, 20, 25, 30, 40, 60)
COLUMNS = {
    "reward": "reward in turn 2",
    "told_0": "agent 0 tells",
    "told_1": "agent 1 tells",
    "differ": "groups of its first answers that differ",
    "entropy": "its entropy, nats per token",
    "gradient": "its gradient after clipping",
    "update": "its update",
    "own": "part of its last gradient",
}


class RecordedAdamW(torch.optim.AdamW):
    """AdamW that writes one row per step to the folder UPDATE_SIZES: norm of the gradient, and root mean square of the
    update over all weights and of the part that the last gradient alone makes, both in units of the learning rate."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        group = self.param_groups[0]
        beta1, beta2 = group["betas"]
        before = {weight: weight.detach().clone() for weight in group["params"] if weight.grad is not None}
        loss = super().step(closure)
        sums = dict.fromkeys(("gradient", "update", "own"), 0.0)
        step = count = 0
        for weight, old in before.items():
            state = self.state[weight]
            step = int(state["step"])
            count += weight.numel()
            deviation = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt() + group["eps"]
            own = weight.grad * (1 - beta1) / (1 - beta1**step) / deviation
            sums["gradient"] += _squares(weight.grad)
            sums["update"] += _squares(weight.detach() - old) / max(group["lr"], 1e-12) ** 2
            sums["own"] += _squares(own)
        row = {"optimizer_step": step, "gradient": math.sqrt(sums["gradient"])}
        row |= {name: math.sqrt(sums[name] / count) for name in ("update", "own")}
        with (Path(os.environ["UPDATE_SIZES"]) / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        return loss


def adamw(groups: Iterable[Any], settings: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimizer of `magrpo.optimizer`."""
    return RecordedAdamW(groups, betas=(settings.adam_beta1, settings.adam_beta2), weight_decay=settings.weight_decay)


def _squares(values: Any) -> float:
    return float((values**2).sum())


def rows(run: Path, updates: Path) -> list[dict[str, float]]:
    """Return one row per step of a run, with the columns of the table. Columns after `told_1` are agent 0's."""
    metrics = [row for row in read_lines(run / "metrics.jsonl") if "turn_2/reward_mean" in row]
    recorded = _of_agent_0([read_lines(file) for file in updates.glob("*.jsonl")], metrics[0]["agent_0/grad_norm"])
    by_step: dict[int, list[Mapping[str, Any]]] = {}
    for episode in read_lines(run / "episodes.jsonl"):
        if episode["kind"] != "eval":
            by_step.setdefault(episode["step"], []).append(episode["nodes"][0])
    found = []
    taken = 0
    for row in metrics:
        nodes = by_step[row["step"]]
        differ = sum(len(set(node["responses"][0])) > 1 for node in nodes) / len(nodes)
        # A step without any advantage has no update, and no entropy.
        update = {"gradient": 0.0, "update": 0.0, "own": 0.0}
        entropy = row.get("agent_0/entropy", 0.0)
        if row["agent_0/optimizer_steps"]:
            update = {name: recorded[taken][name] for name in update}
            taken += 1
        told = {f"told_{agent}": told_in(nodes, agent) for agent in (0, 1)}
        head = {"step": row["step"], "reward": row["turn_2/reward_mean"]}
        found.append({**head, **told, "differ": differ, "entropy": entropy, **update})
    return [{name: round(value, 4) for name, value in row.items()} for row in found]


def _of_agent_0(files: list[list[dict[str, Any]]], norm: float) -> list[dict[str, Any]]:
    """Return the rows whose first gradient is nearest to agent 0's."""
    return min(files, key=lambda own: abs(own[0]["gradient"] - min(1.0, norm)))


def table(found: Iterable[Mapping[str, float]]) -> str:
    """Return a Markdown table of the rows of SHOWN steps."""
    lines = ["| step | " + " | ".join(COLUMNS.values()) + " |", "| --- " * (1 + len(COLUMNS)) + "|"]
    for row in found:
        if row["step"] in SHOWN:
            cells = [f"{row[name]:.3f}" if name == "entropy" else f"{row[name]:.2f}" for name in COLUMNS]
            lines.append(f"| {row['step']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    source, *more = map(Path, sys.argv[1:])
    if more:
        print("\n".join(map(json.dumps, rows(source, more[0]))))
    else:
        print(table(read_lines(source)))
