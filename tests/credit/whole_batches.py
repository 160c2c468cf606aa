"""The batch of one agent built at once from complete episodes, with which batches built group by group are compared."""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.config import Config
from marl_ray.core.batch import Batch
from marl_ray.core.episode import Episode, Node
from marl_ray.credit.groups import (
    build_batch,
    build_group,
    learns,
    needs_whole_batch,
    ordered_by_turn,
    trainable_nodes,
    weight_batch,
)


def build_agent_batch(episodes: Sequence[Episode], agent: int, step: int, config: Config) -> Batch:
    """Return one agent's batch built from complete episodes; empty if it does not learn in this step."""
    training = config.training
    nodes: list[Node] = []
    if learns(agent, step, training.learn_in_turns, config.learning_policies):
        for episode in episodes:
            nodes += trainable_nodes(episode, training, config.agents)
    if ordered_by_turn(training, config.external):
        nodes.sort(key=lambda node: node.turn)  # stable: within a turn the order of episodes stays
    groups = [build_group(node, agent, config) for node in nodes]
    if needs_whole_batch(config.agents[agent]):
        groups = weight_batch(groups, config.agents[agent], training)
    return build_batch(groups, step, training)
