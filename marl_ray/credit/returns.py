"""Returns of an episode: what the learners rank siblings by, and what is reported.

With handoff `random` or `best` one joint action of a node is expanded, and what follows is seen for that one
alone. It cannot rank its siblings, so advantages use the siblings' own rewards; the discounted continuation
enters only the expected return that is logged.
"""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.core.messages import Episode, Group


def expected_returns(mean_rewards: Sequence[float], discount: float) -> list[float]:
    """R_t = r_t + discount * R_(t+1) over the turns played; same length as `mean_rewards`."""
    returns: list[float] = []
    for reward in reversed(mean_rewards):
        returns.append(reward + discount * (returns[-1] if returns else 0.0))
    return returns[::-1]


def groups_of_agent(episodes: Sequence[Episode], agent: int) -> list[Group]:
    """One group for each node: the agent's completions and the returns credited to them."""
    return [
        Group(
            turn=node.turn,
            prompt_ids=node.prompt_ids[agent],
            completions=tuple(node.completions[agent][a.indices[agent]] for a in node.joint_actions),
            returns=tuple(a.reward for a in node.joint_actions),
        )
        for episode in episodes
        for node in episode.nodes
    ]
