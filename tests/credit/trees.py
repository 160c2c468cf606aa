"""Episode trees for tests, written by hand or sampled at random."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from marl_ray.config import Config
from marl_ray.core.episode import Completion, Episode, JointAction, Node, Outcome, Task, sibling_calls
from marl_ray.credit.estimators.base import SiblingValues, load_estimator
from tests.factories import make_config


def tree_config(agents: int, depth: int, group: int, **section: Any) -> Config:
    """Return a config with `agents` agents, `depth` turns and `group` completions per group; `section` are further
    settings."""
    return make_config(num_agents=agents, num_turns=depth, num_generations=group, **section)


def advantages_of(name: str, returns: Tensor, values: Tensor | None = None) -> Tensor:
    """Return the advantages of an estimator; `values` are the input that it requires."""
    estimator = load_estimator(name)
    inputs = {} if values is None else {estimator.requirements.inputs[0]: values}
    return estimator.advantages(SiblingValues(returns, **inputs))


def completion(*ids: int) -> Completion:
    return Completion(ids, "", (-0.5,) * len(ids), "stop", ((0, len(ids)),))


def node(turn: int, group: int, num_agents: int, mode: str, rewards: Sequence[Sequence[float]]) -> Node:
    """Return a node without children. `rewards` has one row per joint action, with one reward per agent."""
    indices = (
        [(g,) * num_agents for g in range(group)]
        if mode == "aligned"
        else list(itertools.product(range(group), repeat=num_agents))
    )
    return Node(
        turn,
        [
            list(
                sibling_calls(
                    (turn, agent),
                    [completion(*[10 * agent + g] * (1 + (g + turn) % 3)) for g in range(group)],
                    agent,
                    f"prompt {agent}",
                )
            )
            for agent in range(num_agents)
        ],
        [
            JointAction(i, Outcome(own[0]), own[0], tuple(own))
            for i, own in zip(indices, map(list, rewards), strict=True)
        ],
    )


def random_tree(
    depth: int, group: int, num_agents: int, mode: str, handoff: str, rng: random.Random, turn: int = 0
) -> Node:
    """Return a random tree. Agents have different rewards, so that a mix-up of agents shows."""
    count = group if mode == "aligned" else group**num_agents
    rewards = [[rng.choice((0.0, 0.4, 1.1, 3.5, 4.0)) + agent for agent in range(num_agents)] for _ in range(count)]
    root = node(turn, group, num_agents, mode, rewards)
    if turn + 1 < depth:
        for index in range(count) if handoff == "all" else [rng.randrange(count)]:
            root.children[index] = random_tree(depth, group, num_agents, mode, handoff, rng, turn + 1)
    return root


def episode(root: Node) -> Episode:
    return Episode(Task("t/1", "Do it.", {}), root)
