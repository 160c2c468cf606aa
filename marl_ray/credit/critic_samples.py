"""What a critic learns from at a node: the state it values, and what came of each completion there.

With critic iac a state is what the agent itself reads, with maac what all agents read, one prompt after another. Both
follow CoMLRL 1.4, whose actor-critics value a turn by its prompts, before anybody has answered.
"""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.config import Config
from marl_ray.core.batch import CriticSample
from marl_ray.core.episode import Node
from marl_ray.credit.overlong import penalize_overlong
from marl_ray.credit.returns import completion_returns


def build_critic_sample(node: Node, agent: int, config: Config) -> CriticSample:
    """One agent's at a node. With handoff `all` the whole tree below the node must be known, and no branch lost
    (`marl_ray.credit.groups.trainable_nodes`)."""
    rewards = completion_returns(node, agent, [action.rewards[agent] for action in node.joint_actions])
    group = node.group(agent)
    follows = config.rollout.handoff == "all"
    return CriticSample(
        state_of(node, agent, config),
        tuple(penalize_overlong(rewards, group, config.agents[agent].max_new_tokens, config.credit)),
        tuple(
            tuple(state_of(child, agent, config) for child in _children(node, agent, completion)) if follows else ()
            for completion in range(len(group))
        ),
    )


def state_of(node: Node, agent: int, config: Config) -> tuple[int, ...]:
    """What the agent's critic reads at a node, as token ids."""
    if config.credit.critic == "maac":
        return joint_state(node.prompt_ids, config.model.max_length)
    return node.prompt_ids[agent]


def joint_state(prompts: Sequence[tuple[int, ...]], max_length: int) -> tuple[int, ...]:
    """All agents' prompts, one after another; where that is more than `max_length` tokens, the last ones of each.

    Example:
        >>> joint_state([(1, 2, 3), (4,)], 4), joint_state([(1, 2, 3), (4,)], 3)
        ((1, 2, 3, 4), (3, 4))
    """
    if sum(map(len, prompts)) > max_length:
        room = max(1, max_length // len(prompts))
        prompts = [prompt[-room:] for prompt in prompts]
    return tuple(token for prompt in prompts for token in prompt)


def _children(node: Node, agent: int, completion: int) -> list[Node]:
    """The nodes that joint actions with this completion led to."""
    holding = (index for index, action in enumerate(node.joint_actions) if action.indices[agent] == completion)
    return [node.children[index] for index in holding if index in node.children]
