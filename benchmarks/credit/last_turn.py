"""The audit of whole trees: two turns with handoff `all` and `num_generations: [4, 1]`.

Two agents play penalty in turn 1 and climbing in turn 2, with policies of turn 2 that depend on the joint action of
turn 1. A group of turn 1 has four returns, each with one continuation; a group of turn 2 has one reward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.credit.audit import CHUNK, GROUP
from benchmarks.credit.games import GAMES, Actions, Array, MatrixGame, sample, softmax
from marl_ray.credit.estimators.base import SiblingValues, load_estimator

_BY_NAME = {game.name: game for game in GAMES if isinstance(game, MatrixGame)}
FIRST, SECOND = _BY_NAME["penalty"], _BY_NAME["climbing"]
ACTIONS = 3
ABSENT = ACTIONS
"""Index of no answer in the payoffs."""


def later_policies() -> list[Array]:
    """Return each agent's policy of turn 2, [joint actions of turn 1, actions]."""
    places = np.arange(ACTIONS**2)[:, None] + 2.0 * np.arange(ACTIONS)
    return [softmax(0.6 * np.sin(places + agent)) for agent in range(2)]


@dataclass(frozen=True, slots=True)
class Sample:
    """Sampled trees: actions of both turns by agent, and their rewards, all [S, G]. `contexts` are the joint actions of
    turn 1 as numbers."""

    first: list[Actions]
    contexts: Actions
    second: list[Actions]
    rewards: Array
    later_rewards: Array

    def later_rewards_without(self, agent: int) -> Array:
        """Return the rewards of turn 2 with no answer of the agent."""
        joint = list(self.second)
        joint[agent] = np.full_like(joint[agent], ABSENT)
        return np.asarray(SECOND.payoff[tuple(joint)])


Credit = Callable[[Sample, int], Array]
"""Returns an agent's advantages, [S, G]."""


def advantages(estimator: str, returns: Array, baselines: Array) -> Array:
    """Return the advantages of groups [..., G] by an estimator of the package."""
    found = load_estimator(estimator)
    inputs = {name: torch.from_numpy(baselines) for name in found.requirements.inputs}
    values: Array = found.advantages(SiblingValues(torch.from_numpy(returns), **inputs)).numpy()
    return values


def _by_siblings(estimator: str) -> Credit:
    """Return the credit of turn 1, whose baseline is the mean return."""

    def credit(trees: Sample, agent: int) -> Array:
        returns = trees.rewards + trees.later_rewards
        means = np.broadcast_to(returns.mean(-1, keepdims=True), returns.shape).copy()
        return advantages(estimator, returns, means)

    return credit


def _of_last_turn(estimator: str) -> Credit:
    """Return the credit of turn 2, in groups of one answer."""

    def credit(trees: Sample, agent: int) -> Array:
        rewards = trees.later_rewards
        baselines = trees.later_rewards_without(agent)
        if estimator == "shapley":
            alone = trees.later_rewards_without(1 - agent)
            # Of two agents: half of the gain over the partner alone, half of its reward alone (no answers earn 0).
            baselines = rewards - (rewards - baselines + alone) / 2
        return advantages(estimator, rewards[..., None], baselines[..., None])[..., 0]

    return credit


SHRUNK = 1 - 1 / GROUP
VARIANTS: tuple[tuple[int, str, float | None, Credit], ...] = (
    (1, "magrpo", SHRUNK, _by_siblings("magrpo")),
    (1, "difference", SHRUNK, _by_siblings("difference")),
    (1, "shapley", SHRUNK, _by_siblings("shapley")),
    (2, "mareinforce", 1.0, lambda trees, agent: trees.later_rewards),
    (2, "difference", 1.0, _of_last_turn("difference")),
    (2, "shapley", None, _of_last_turn("shapley")),
)
"""Turn, name, factor of the exact gradient in the expectation (None: biased), and credit."""


def exact_gradients(turn: int) -> list[Array]:
    """Return the gradient of the expected return in each agent's logits of a turn, [contexts, actions]."""
    later = later_policies()
    payoff = SECOND.payoff[:ACTIONS, :ACTIONS]
    # Expected reward of turn 2 after each joint action of turn 1.
    values = np.einsum("ca,ab,cb->c", later[0], payoff, later[1])
    own, partner = (policy[0] for policy in FIRST.policies)
    found: list[Array] = []
    if turn == 1:
        returns = FIRST.payoff[:ACTIONS, :ACTIONS] + values.reshape(ACTIONS, ACTIONS)
        for policy, by_action in ((own, returns @ partner), (partner, own @ returns)):
            found.append((policy * (by_action - policy @ by_action))[None])
        return found
    chances = np.outer(own, partner).reshape(-1, 1)
    for policy, by_action in ((later[0], later[1] @ payoff.T), (later[1], later[0] @ payoff)):
        found.append(chances * policy * (by_action - values[:, None]))
    return found


def sample_trees(rng: np.random.Generator, count: int) -> Sample:
    """Return `count` trees."""
    nothing = np.zeros((count, GROUP), dtype=np.int64)
    first = [sample(rng, policy, nothing) for policy in FIRST.policies]
    contexts = first[0] * ACTIONS + first[1]
    second = [sample(rng, policy, contexts) for policy in later_policies()]
    return Sample(first, contexts, second, FIRST.payoff[tuple(first)], SECOND.payoff[tuple(second)])


def gradients(trees: Sample, turn: int, agent: int, credit: Array) -> Array:
    """Return the gradient of each tree in an agent's logits of a turn, [S, contexts * actions]."""
    if turn == 1:
        policy = FIRST.policies[agent]
        contexts = np.zeros_like(trees.contexts)
        actions = trees.first[agent]
    else:
        policy = later_policies()[agent]
        contexts = trees.contexts
        actions = trees.second[agent]
    slopes = np.zeros((len(credit), *policy.shape))
    rows = np.arange(len(credit))
    for g in range(GROUP):  # siblings in turn 1, nodes of one answer in turn 2
        slopes[rows, contexts[:, g], actions[:, g]] += credit[:, g] / GROUP
        slopes[rows, contexts[:, g]] -= policy[contexts[:, g]] * credit[:, g, None] / GROUP
    return slopes.reshape(len(credit), -1)


@dataclass(frozen=True, slots=True)
class TurnAudit:
    """The measures of one variant, as in `benchmarks.credit.audit.Audit`."""

    turn: int
    variant: str
    scale: float | None
    standard_errors: float
    cosine: float
    noise: float


def audit_turns(trees: int, seed: int) -> list[TurnAudit]:
    """Return the measures of all variants from at least `trees` sampled trees."""
    found = []
    for turn, name, scale, credit in VARIANTS:
        rng = np.random.default_rng([seed, trees, turn])
        exact = np.concatenate([gradient.ravel() for gradient in exact_gradients(turn)])
        total = np.zeros_like(exact)
        squares = np.zeros_like(exact)
        count = 0
        while count < trees:
            sampled = sample_trees(rng, CHUNK)
            parts = [gradients(sampled, turn, agent, credit(sampled, agent)) for agent in range(2)]
            slopes = np.concatenate(parts, axis=1)
            total += slopes.sum(0)
            squares += (slopes**2).sum(0)
            count += CHUNK
        mean = total / count
        variance = squares / count - mean**2
        error = np.linalg.norm(mean - (scale or 1.0) * exact) / np.sqrt(variance.sum() / count)
        cosine = float(mean @ exact / np.linalg.norm(mean) / np.linalg.norm(exact))
        noise = float(variance.sum() / (mean**2).sum())
        found.append(TurnAudit(turn, name, scale, float(error), cosine, noise))
    return found


def turn_rows(audits: list[TurnAudit]) -> Iterator[list[str]]:
    """Yield the table of both turns."""
    yield ["turn", "estimator", "scale", "distance in s.e.", "cosine", "noise"]
    for one in audits:
        scale = "biased" if one.scale is None else f"{one.scale:g}"
        distance = "" if one.scale is None else f"{one.standard_errors:.1f}"
        yield [str(one.turn), one.variant, scale, distance, f"{one.cosine:.3f}", f"{one.noise:.1f}"]
