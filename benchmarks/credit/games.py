"""Team games with few actions, the policies at which they are audited, and their exact gradients.

Every agent has a softmax policy with one row of logits per context. A completion is one action, of one token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Actions = npt.NDArray[np.int64]


def softmax(logits: Array) -> Array:
    """Return the probabilities of each row."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities: Array = weights / weights.sum(-1, keepdims=True)
    return probabilities


def sample(rng: np.random.Generator, probabilities: Array, contexts: Actions) -> Actions:
    """Return one action per entry of `contexts`, of any shape."""
    bounds = probabilities.cumsum(-1)[contexts]
    drawn: Actions = (rng.random((*contexts.shape, 1)) > bounds[..., :-1]).sum(-1)
    return drawn


@dataclass(frozen=True, slots=True)
class MatrixGame:
    """A game in which all agents act at the same time. `payoff` has one axis per agent, whose last index stands for an
    agent that gives no answer. `logits` are each agent's policy. `second` is the payoff of a second turn that follows
    some actions, as in `two_step`: its expected reward is in `payoff`, and rewards are sampled from it."""

    name: str
    payoff: Array
    logits: tuple[Array, ...]
    second: tuple[int, Array, tuple[Array, ...]] | None = None

    @property
    def agents(self) -> int:
        return self.payoff.ndim

    @property
    def policies(self) -> list[Array]:
        return [softmax(logits) for logits in self.logits]

    def actions(self, agent: int) -> int:
        return self.payoff.shape[agent] - 1

    def rewards(self, rng: np.random.Generator, actions: Sequence[Actions]) -> Array:
        """Return the rewards of joint actions; the arrays of all agents have one shape."""
        found: Array = self.payoff[tuple(actions)].copy()
        if self.second is not None:
            first, payoff, policies = self.second
            follows = actions[0] == first
            zeros = np.zeros(follows.sum(), dtype=np.int64)
            later = [sample(rng, softmax(logits), zeros) for logits in policies]
            found[follows] = payoff[tuple(later)]
        return found

    def action_values(self, agent: int) -> Array:
        """Return Q(a): the expected reward of each action of the agent while the others follow their policies."""
        values = self.payoff
        for other in reversed(range(self.agents)):
            if other != agent:
                present = np.append(self.policies[other][0], 0.0)
                values = np.tensordot(values, present, axes=([other], [0]))
        return np.asarray(values[:-1])

    def gradients(self) -> list[Array]:
        """Return the gradient of the expected reward in each agent's logits, [contexts][actions]."""
        found = []
        for agent, policy in enumerate(self.policies):
            values = self.action_values(agent)
            found.append(policy * (values - policy @ values[:, None]))
        return found

    def coalition_value(self, present: Sequence[int]) -> float:
        """Return the expected reward if only these agents answer."""
        values = self.payoff
        for agent in reversed(range(self.agents)):
            own = np.append(self.policies[agent][0], 0.0) if agent in present else np.eye(self.actions(agent) + 1)[-1]
            values = np.tensordot(values, own, axes=([agent], [0]))
        return float(values)

    def marginal(self, agent: int) -> float:
        """Return the expected reward of all agents less that without the agent."""
        everyone = range(self.agents)
        return self.coalition_value(everyone) - self.coalition_value([other for other in everyone if other != agent])

    def shapley(self, agent: int) -> float:
        """Return the agent's mean marginal value over all orders in which agents join."""
        orders = list(permutations(range(self.agents)))
        gains = (
            self.coalition_value(order[: order.index(agent) + 1]) - self.coalition_value(order[: order.index(agent)])
            for order in orders
        )
        return sum(gains) / math.factorial(self.agents)


@dataclass(frozen=True, slots=True)
class Signalling:
    """A speaker sees one of the states and sends a signal; a listener sees the signal alone and names the state. The
    reward is 1 if it is right. Contexts are the states (speaker) and the signals (listener)."""

    name: str
    logits: tuple[Array, Array]
    agents: int = 2

    @property
    def policies(self) -> list[Array]:
        return [softmax(logits) for logits in self.logits]

    def gradients(self) -> list[Array]:
        """Return the gradient of the expected reward in each agent's logits, [contexts][actions]."""
        speaker, listener = self.policies
        states = len(speaker)
        right = listener.T  # of each state, by signal
        of_speaker = speaker * (right - (speaker * right).sum(-1, keepdims=True)) / states
        weight = speaker.T / states  # probability of (signal, state)
        of_listener = listener * (weight - (listener * weight).sum(-1, keepdims=True))
        return [of_speaker, of_listener]

    def action_values(self, agent: int) -> Array:
        """Return the probability of a right answer, [contexts][actions]."""
        speaker, listener = self.policies
        return listener.T if agent == 0 else (speaker / speaker.sum(0)).T

    def value(self) -> float:
        speaker, listener = self.policies
        return float((speaker * listener.T).sum() / len(speaker))


def _with_absence(payoff: Sequence[Sequence[float]], alone: Sequence[Sequence[float]]) -> Array:
    """Return the payoff of two agents with a last row and column for an absent partner; 0 if both are absent."""
    inner = np.array(payoff, dtype=np.float64)
    full = np.zeros((inner.shape[0] + 1, inner.shape[1] + 1))
    full[:-1, :-1] = inner
    full[:-1, -1], full[-1, :-1] = alone
    return full


def _three_workers() -> Array:
    """Return the reward 4 for at least two agents that work, 1 for one, less 0.5 per agent that works. Action 0 rests,
    action 1 works."""
    payoff = np.zeros((3, 3, 3))
    for actions in product(range(3), repeat=3):
        working = actions.count(1)
        payoff[actions] = (0.0, 1.0, 4.0, 4.0)[working] - 0.5 * working
    return payoff


def _two_step() -> MatrixGame:
    """Return the first turn of the two-step game (Rashid et al., 2018): agent 0's action 0 leads to a reward of 7,
    action 1 to a second turn with payoffs 0, 1, 1 and 8."""
    second = np.array([[0.0, 1.0], [1.0, 8.0]])
    later = (np.array([[0.1, 0.4]]), np.array([[-0.2, 0.3]]))
    expected = float(softmax(later[0])[0] @ second @ softmax(later[1])[0])
    payoff = np.zeros((3, 3))
    payoff[0, :-1], payoff[1, :-1] = 7.0, expected
    logits = (np.array([[0.2, -0.1]]), np.array([[0.0, 0.3]]))
    return MatrixGame("two-step", payoff, logits, (1, second, later))


THREE = (np.array([[0.3, -0.2, 0.1]]), np.array([[-0.1, 0.2, 0.4]]))
GAMES: tuple[MatrixGame | Signalling, ...] = (
    MatrixGame(
        "climbing",
        _with_absence([[11, -30, 0], [-30, 7, 6], [0, 0, 5]], [[0, 0, 2], [0, 0, 2]]),
        THREE,
    ),
    MatrixGame("penalty", _with_absence([[10, 0, -10], [0, 2, 0], [-10, 0, 10]], [[1, 0, 1], [1, 0, 1]]), THREE),
    _two_step(),
    MatrixGame("three workers", _three_workers(), tuple(np.array([[0.2, -0.1 * n]]) for n in range(3))),
    Signalling(
        "signalling",
        (
            np.array([[0.6, 0.0, -0.3], [-0.2, 0.5, 0.1], [0.0, -0.4, 0.3]]),
            np.array([[0.4, 0.1, 0.0], [0.0, 0.3, -0.2], [0.2, -0.1, 0.5]]),
        ),
    ),
)
"""Climbing and penalty are from Claus and Boutilier (1998, "The dynamics of reinforcement learning in cooperative
multiagent systems")."""
