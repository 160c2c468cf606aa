"""Predictions from tables in place of models: `python -m benchmarks.roll_call.simulation` (about a minute, no Ray).

Each agent's policy is a table of logits, one row per letter that it reads, for every cell of its row alike. All other
parts are as in a run: tasks and groups per step, the estimators of `marl_ray.credit`, AdamW, the best of three
learning rates on two other seeds, and the measure. A model shares its weights between letters and starts elsewhere, so
only the ratios of two estimators are predictions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.credit.games import Array, sample, softmax
from benchmarks.roll_call.crossing import GROUP, STEP_SAMPLES, TASKS, geometric_mean, samples_to_target
from marl_ray.credit.estimators.base import SiblingValues, load_estimator

WIDTH = 2
"""Letters of a row."""
LETTERS = 4
START = 0.4
"""Probability of a right letter before training."""
STEPS = 400
RATES = (0.2, 0.6, 1.8)
BETA_1 = 0.9
BETA_2 = 0.999
SEEDS = range(1, 9)
CHOICE_SEEDS = (101, 102)

Cells = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Credit:
    """An estimator with the setting `counterfactual`, the reward, and whether all agents have one policy. `own`: each
    agent learns from its own row. `worst`: the reward has the worst writer's share of right cells."""

    title: str
    estimator: str
    counterfactual: str = ""
    own: bool = False
    worst: bool = False
    one_policy: bool = False


SHARED = Credit("shared", "magrpo")
DIFFERENCE = Credit("difference", "centred_difference", "empty")
CREDITS: Mapping[Credit, Sequence[int]] = {
    SHARED: (2, 4, 8, 16),
    DIFFERENCE: (2, 4, 8, 16),
    Credit("own", "magrpo", own=True): (2, 4, 8, 16),
    Credit("shapley", "shapley", "coalitions"): (2, 4),
    replace(SHARED, title="shared, one policy", one_policy=True): (8,),
    replace(DIFFERENCE, title="difference, one policy", one_policy=True): (8,),
    replace(SHARED, title="worst: shared", worst=True): (4, 8),
    replace(DIFFERENCE, title="worst: difference, siblings", counterfactual="siblings", worst=True): (4, 8),
    Credit("worst: own", "magrpo", own=True, worst=True): (4, 8),
}
"""The numbers of agents that are simulated with each credit."""


def team_reward(right: Cells, worst: bool) -> Array:
    """Return the reward of joint actions [...] from right cells [..., N, W]."""
    shares = right.mean(-1)
    part = shares.min(-1) if worst else shares.mean(-1)
    found: Array = part + right.all((-1, -2))
    return found


def rewards_of(right: Cells, agent: int, credit: Credit) -> Array:
    """Return the agent's rewards [B, G] from right cells [B, G, N, W]."""
    if credit.own:
        found: Array = right[:, :, agent].mean(-1) + right[:, :, agent].all(-1)
        return found
    return team_reward(right, credit.worst)


def baselines_of(right: Cells, agent: int, credit: Credit) -> Array:
    """Return the rewards [B, G] with the agent's cells replaced, as the setting `counterfactual` says."""
    if credit.counterfactual == "coalitions":
        # The Shapley value of a sum is the agent's own part; the reward for a complete call is divided equally.
        value = (right[:, :, agent].mean(-1) + right.all((-1, -2))) / right.shape[2]
        return np.asarray(team_reward(right, credit.worst) - value)
    replaced = right.copy()
    if credit.counterfactual == "empty":
        replaced[:, :, agent] = False
        return team_reward(replaced, credit.worst)
    others = []
    for shift in range(1, GROUP):
        replaced[:, :, agent] = np.roll(right[:, :, agent], shift, axis=1)
        others.append(team_reward(replaced, credit.worst))
    found: Array = np.mean(others, axis=0)
    return found


def advantages_of(right: Cells, agent: int, credit: Credit) -> Array:
    """Return the agent's advantages [B, G]."""
    estimator = load_estimator(credit.estimator)
    inputs = {}
    for name in estimator.requirements.inputs:
        inputs[name] = torch.from_numpy(baselines_of(right, agent, credit))
    found: Array = estimator.advantages(
        SiblingValues(torch.from_numpy(rewards_of(right, agent, credit)), **inputs)
    ).numpy()
    return found


def train(agents: int, credit: Credit, rate: float, seed: int) -> int | None:
    """Return the joint samples until the measure reaches the target, None if STEPS steps are too few."""
    rng = np.random.default_rng([seed, agents])
    start = math.log(START / (1 - START) * (LETTERS - 1))
    logits = np.tile(start * np.eye(LETTERS), (agents, 1, 1))
    first_moment = np.zeros_like(logits)
    second_moment = np.zeros_like(logits)
    curve: list[float] = []
    for step in range(1, STEPS + 1):
        policies = softmax(logits)
        letters = np.repeat(rng.integers(LETTERS, size=(TASKS, 1, agents, WIDTH)), GROUP, axis=1)
        written = np.stack([sample(rng, policies[i], letters[:, :, i]) for i in range(agents)], axis=2)
        right = written == letters
        curve.append(float(team_reward(right, credit.worst).mean()))
        crossed = samples_to_target(curve)
        if crossed is not None:
            return crossed
        gradient = np.zeros_like(logits)
        for agent in range(agents):
            weights = np.repeat(advantages_of(right, agent, credit)[:, :, None], WIDTH, axis=2) / STEP_SAMPLES
            np.add.at(gradient[agent], (letters[:, :, agent], written[:, :, agent]), weights)
            read = np.zeros(LETTERS)
            np.add.at(read, letters[:, :, agent], weights)
            gradient[agent] -= read[:, None] * policies[agent]
        if credit.one_policy:
            gradient[:] = gradient.sum(0)
        first_moment = BETA_1 * first_moment + (1 - BETA_1) * gradient
        second_moment = BETA_2 * second_moment + (1 - BETA_2) * gradient**2
        unbiased = first_moment / (1 - BETA_1**step)
        scale = np.sqrt(second_moment / (1 - BETA_2**step)) + 1e-8
        logits = logits + rate * unbiased / scale
    return None


def at_best_rate(agents: int, credit: Credit) -> tuple[float, float]:
    """Return the rate with the fewest samples on CHOICE_SEEDS, and the geometric mean of the samples of SEEDS at this
    rate. A run that does not reach the target counts with all its samples."""

    def samples(rate: float, seeds: Sequence[int]) -> float:
        return geometric_mean([train(agents, credit, rate, seed) or STEPS * STEP_SAMPLES for seed in seeds])

    best = min(RATES, key=lambda rate: samples(rate, CHOICE_SEEDS))
    return best, samples(best, SEEDS)


def main() -> None:
    for credit, counts in CREDITS.items():
        for agents in counts:
            rate, samples = at_best_rate(agents, credit)
            print(f"{credit.title}, {agents} agents: {samples:.0f} joint samples at rate {rate:g}", flush=True)


if __name__ == "__main__":
    main()
