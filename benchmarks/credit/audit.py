"""Sampling of groups in the games, and the bias, variance and fidelity of each estimator's gradient.

The advantages come from the estimators in `marl_ray.credit.ESTIMATORS`. The gradient of one group of agent i is
(1 / G) * sum over siblings of A * grad log pi_i(action), as in the loss with one group.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.credit.games import Actions, Array, MatrixGame, Signalling, sample
from marl_ray.credit.estimators.base import SiblingValues, load_estimator, whitened
from marl_ray.credit.requirement_table import MAX_COALITION_AGENTS
from marl_ray.rollout.coalitions import coalitions

GROUP = 4
"""Siblings per group."""
BATCH = 8
"""Groups per batch of an estimator that compares the whole batch."""
CHUNK = 8_000
"""Groups that are in memory at a time, a multiple of BATCH."""
Game = MatrixGame | Signalling


@dataclass(frozen=True, slots=True)
class Variant:
    """An estimator with its settings. `scale` is the factor of the exact gradient in its expectation, None if the
    estimator is biased."""

    name: str
    estimator: str
    scale: float | None
    cross: bool = False
    counterfactual: str = ""

    def applies_to(self, game: Game) -> bool:
        """Return whether the settings are valid for the game: extra joint actions need one turn and no order, and their
        number grows exponentially with the agents."""
        if game.agents > MAX_COALITION_AGENTS and (self.cross or self.counterfactual == "coalitions"):
            return False
        if not (self.counterfactual or self.estimator == "remax"):
            return isinstance(game, MatrixGame) or not self.cross
        return isinstance(game, MatrixGame) and game.second is None


SHRUNK = 1 - 1 / GROUP
VARIANTS = (
    Variant("mareinforce", "mareinforce", 1.0),
    Variant("magrpo", "magrpo", SHRUNK),
    Variant("magrpo, cross", "magrpo", SHRUNK, cross=True),
    Variant("marloo", "marloo", 1.0),
    Variant("marloo, cross", "marloo", 1.0, cross=True),
    Variant("maremax", "maremax", None),
    Variant("remax", "remax", 1.0),
    Variant("maxrl", "maxrl", None),
    Variant("pass_at_k", "pass_at_k", None),
    Variant("reinforce_pp", "reinforce_pp", None),
    Variant("gdpo, one level", "gdpo", None),
    Variant("difference, empty", "difference", 1.0, counterfactual="empty"),
    Variant("difference, median", "difference", None, counterfactual="median"),
    Variant("difference, siblings", "difference", 1.0, counterfactual="siblings"),
    Variant("centred_difference, empty", "centred_difference", SHRUNK, counterfactual="empty"),
    Variant("centred_difference, siblings", "centred_difference", 1.0, counterfactual="siblings"),
    Variant("shapley", "shapley", None, counterfactual="coalitions"),
)


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of one agent: contexts [S], actions [S, G], credited returns [S, G], and baselines [S, G] or None."""

    contexts: Actions
    actions: Actions
    returns: Array
    baselines: Array | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """The measures of a variant on a game.

    | field | meaning |
    |---|---|
    | `scale` | factor of the exact gradient in the expectation, None if the variant is biased |
    | `standard_errors` | norm of mean gradient - scale * exact gradient, in standard errors of the mean |
    | `cosine` | cosine of the mean gradient and the exact gradient |
    | `noise` | variance of one group's gradient, relative to the squared norm of its mean |
    | `fidelity` | correlation of advantages with exact advantages Q(a) - V |
    | `second_moment` | mean squared advantage |
    | `partners` | share of the advantages' variance that remains when the agent's own action is given |
    | `tokens`, `executions` | cost of one node, all agents together |
    """

    game: str
    variant: str
    scale: float | None
    standard_errors: float
    cosine: float
    noise: float
    fidelity: float
    second_moment: float
    partners: float
    tokens: int
    executions: int


def audit(game: Game, variant: Variant, groups: int, seed: int = 0) -> Audit:
    """Return the measures from `groups` sampled groups per agent."""
    rng = np.random.default_rng([seed, groups])
    exact = np.concatenate([gradient.ravel() for gradient in game.gradients()])
    values = [np.atleast_2d(game.action_values(agent)) for agent in range(game.agents)]
    total, squares, count = np.zeros_like(exact), np.zeros_like(exact), 0
    advantages: list[list[Array]] = [[] for _ in range(game.agents)]
    truths: list[list[Array]] = [[] for _ in range(game.agents)]
    owners: list[list[Actions]] = [[] for _ in range(game.agents)]
    while count < groups:
        slopes = []
        for agent, one in enumerate(sample_groups(game, variant, rng, CHUNK)):
            credit, policy = _advantages(one, variant), game.policies[agent]
            slopes.append(_gradient(one, credit, policy))
            expected = (policy * values[agent]).sum(-1)
            advantages[agent].append(credit.ravel())
            exact_credit = values[agent][one.contexts[:, None], one.actions] - expected[one.contexts, None]
            truths[agent].append(exact_credit.ravel())
            owners[agent].append((one.contexts[:, None] * policy.shape[1] + one.actions).ravel())
        slope = np.concatenate(slopes, axis=1)
        total, squares, count = total + slope.sum(0), squares + (slope**2).sum(0), count + CHUNK
    mean = total / count
    variance = squares / count - mean**2
    error = np.linalg.norm(mean - (variant.scale or 1.0) * exact)
    given, truth = ([np.concatenate(parts) for parts in every] for every in (advantages, truths))
    codes = [np.concatenate(parts) for parts in owners]
    within = sum(_within(a, c) for a, c in zip(given, codes, strict=True))
    spread = sum(float(a.var()) for a in given)
    return Audit(
        game=game.name,
        variant=variant.name,
        scale=variant.scale,
        standard_errors=float(error / np.sqrt(variance.sum() / count)),
        cosine=float(mean @ exact / np.linalg.norm(mean) / np.linalg.norm(exact)),
        noise=float(variance.sum() / (mean**2).sum()),
        fidelity=float(np.corrcoef(np.concatenate(given), np.concatenate(truth))[0, 1]),
        second_moment=float(np.mean([np.mean(a**2) for a in given])),
        partners=within / spread,
        tokens=tokens_of(game, variant),
        executions=executions_of(game, variant),
    )


def _within(values: Array, codes: Actions) -> float:
    """Return the mean variance of the values with equal codes."""
    counts = np.bincount(codes)
    sums, squares = np.bincount(codes, values), np.bincount(codes, values**2)
    seen = counts > 0
    return float((squares[seen] - sums[seen] ** 2 / counts[seen]).sum() / len(values))


def _advantages(groups: Groups, variant: Variant) -> Array:
    estimator = load_estimator(variant.estimator)
    returns = torch.from_numpy(groups.returns)
    inputs: dict[str, torch.Tensor] = {}
    for name in estimator.requirements.inputs:
        inputs[name] = whitened(returns) if name == "levels" else torch.from_numpy(groups.baselines)
    if estimator.requirements.whole_batch:  # compares the completions of a batch
        returns = returns.reshape(-1, BATCH * GROUP)
        inputs = {name: values.reshape(-1, BATCH * GROUP) for name, values in inputs.items()}
    found: Array = estimator.advantages(SiblingValues(returns, **inputs)).reshape(-1, GROUP).numpy()
    return found


def _gradient(groups: Groups, advantages: Array, policy: Array) -> Array:
    """Return the gradient of every group in the logits, [S, contexts * actions]."""
    size, actions = policy.shape
    rows = np.arange(len(groups.contexts))
    slopes = np.zeros((len(rows), size, actions))
    for g in range(GROUP):
        slopes[rows, groups.contexts, groups.actions[:, g]] += advantages[:, g] / GROUP
    slopes[rows, groups.contexts] -= policy[groups.contexts] * advantages.mean(1, keepdims=True)
    return slopes.reshape(len(rows), -1)


def sample_groups(game: Game, variant: Variant, rng: np.random.Generator, count: int) -> list[Groups]:
    """Return `count` groups of each agent at common nodes."""
    if isinstance(game, Signalling):
        return _ordered(game, rng, count)
    contexts = np.zeros((count, GROUP), dtype=np.int64)
    actions = [sample(rng, policy, contexts) for policy in game.policies]
    joint = actions
    if variant.cross:  # axis 1 + i of the joint actions is agent i's completion
        shape = (count, *(GROUP,) * game.agents)
        joint = [
            np.broadcast_to(own.reshape(count, *(GROUP if i == agent else 1 for i in range(game.agents))), shape)
            for agent, own in enumerate(actions)
        ]
    rewards = game.rewards(rng, joint)
    found = []
    for agent in range(game.agents):
        others = tuple(1 + other for other in range(game.agents) if other != agent)
        returns = rewards.mean(others) if variant.cross else rewards
        own = _baselines(game, variant, agent, actions, rewards)
        found.append(Groups(contexts[:, 0], actions[agent], np.ascontiguousarray(returns), own))
    return found


def _baselines(game: MatrixGame, variant: Variant, agent: int, actions: list[Actions], rewards: Array) -> Array | None:
    """Return the baselines [S, G] of an aligned variant, None if its estimator takes none."""
    absent = game.actions(agent)
    if variant.estimator == "remax":
        greedy = tuple(int(policy[0].argmax()) for policy in game.policies)
        return np.full_like(rewards, game.payoff[greedy])

    def replaced(own: Actions | int) -> Array:
        return np.asarray(game.payoff[tuple(own if i == agent else a for i, a in enumerate(actions))])

    match variant.counterfactual:
        case "empty":
            return replaced(absent)
        case "median":
            order = rewards.argsort(1, kind="stable")[:, (GROUP - 1) // 2]
            return replaced(np.take_along_axis(actions[agent], order[:, None], 1))
        case "siblings":
            others = [replaced(np.roll(actions[agent], shift, 1)) for shift in range(1, GROUP)]
            return np.asarray(np.mean(others, axis=0))
        case "coalitions":
            return rewards - _shapley(game, agent, actions)
    return None


def _shapley(game: MatrixGame, agent: int, actions: list[Actions]) -> Array:
    """Return the agent's Shapley value in each joint action, with the other agents' actions as they are."""

    def worth(present: frozenset[int]) -> Array:
        given = (a if i in present else np.full_like(a, game.actions(i)) for i, a in enumerate(actions))
        return np.asarray(game.payoff[tuple(given)])

    shares = [
        (worth(present | {agent}) - worth(present)) / (game.agents * math.comb(game.agents - 1, len(present)))
        for present in coalitions(game.agents)
        if agent not in present
    ]
    return np.asarray(np.sum(shares, axis=0))


def _ordered(game: Signalling, rng: np.random.Generator, count: int) -> list[Groups]:
    """Return the groups of a speaker and a listener, as `marl_ray.rollout.turn` samples them: G answers to the first
    signal, and one answer to each other signal, from which the listener does not learn."""
    speaker, listener = game.policies
    states = rng.integers(len(speaker), size=count)
    signals = sample(rng, speaker, np.repeat(states[:, None], GROUP, 1))
    answers = sample(rng, listener, np.repeat(signals[:, :1], GROUP, 1))
    others = sample(rng, listener, signals[:, 1:])
    right = (answers == states[:, None]).astype(np.float64)
    of_speaker = np.concatenate([right.mean(1, keepdims=True), (others == states[:, None]).astype(np.float64)], axis=1)
    return [Groups(states, signals, of_speaker), Groups(signals[:, 0], answers, right)]


def tokens_of(game: Game, variant: Variant) -> int:
    """Return the sampled tokens of one node and its continuations, one token per action."""
    if isinstance(game, Signalling):
        return GROUP + 2 * GROUP - 1
    turns = 1 if game.second is None else 2
    joint = GROUP**game.agents if variant.cross else GROUP
    later = game.agents * joint * (turns - 1)
    return game.agents * (GROUP + (variant.estimator == "remax")) + later


def executions_of(game: Game, variant: Variant) -> int:
    """Return the different programs of one node if all completions differ, with one program per joint action."""
    if isinstance(game, Signalling):
        return 2 * GROUP - 1
    if variant.cross:
        return int(GROUP**game.agents) * (1 if game.second is None else 2)
    aligned = {(g,) * game.agents for g in range(GROUP)}
    programs = aligned | set(_extra_programs(variant, game.agents))
    return len(programs) * (1 if game.second is None else 2)


def _extra_programs(variant: Variant, agents: int) -> Iterator[Sequence[int]]:
    """Yield the extra joint actions of a node as indices of completions; -1 is no answer and -2 the greedy one."""
    if variant.estimator == "remax":
        yield (-2,) * agents
    for g, agent in itertools.product(range(GROUP), range(agents)):
        joint = [g] * agents
        match variant.counterfactual:
            case "empty":
                yield (*joint[:agent], -1, *joint[agent + 1 :])
            case "median":
                yield (*joint[:agent], 0, *joint[agent + 1 :])
            case "siblings":
                yield from ((*joint[:agent], other, *joint[agent + 1 :]) for other in range(GROUP))
            case "coalitions":
                yield from (tuple(g if i in present else -1 for i in range(agents)) for present in coalitions(agents))
