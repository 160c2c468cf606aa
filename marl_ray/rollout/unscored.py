"""Joint actions without a reward: they are left out of their group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from marl_ray.core.episode import AgentCall, Episode, JointAction, Node
from marl_ray.core.errors import UserError


class NoVerdict(Exception):
    """A node that is lost, for the reason of its `Stop` and with the message as its detail."""

    def __init__(self, reason: Literal["infra_error", "unscored"], detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def keep_joint_actions(node: Node, kept: Sequence[int]) -> Node:
    """Return a node without baselines that has only the joint actions `kept`, and the calls that occur in them.

    Raises NoVerdict if an agent's group would have no completion.
    """
    actions = [node.joint_actions[number] for number in kept]
    calls: list[list[AgentCall]] = []
    new_indices: list[list[int]] = [[] for _ in actions]
    for agent, sampled in enumerate(node.calls):
        used = sorted({action.indices[agent] for action in actions})
        # The group comes first in the calls, so a group without a call here has no first one.
        if not used or sampled[used[0]].sibling is None:
            raise NoVerdict("unscored", "no joint action with a sibling of some agent has a reward")
        calls.append([sampled[index] for index in used])
        for number, action in enumerate(actions):
            new_indices[number].append(used.index(action.indices[agent]))
    renumbered: list[JointAction] = []
    for action, indices in zip(actions, new_indices, strict=True):
        renumbered.append(replace(action, indices=tuple(indices)))
    return replace(node, calls=calls, joint_actions=renumbered)


def check_failed_rewards(episodes: Sequence[Episode], place: str, share: float, section: str) -> None:
    """Raise UserError if more than a share of the calls of a reward function failed in these episodes of `place`, such
    as "step 3". `section` has the setting of the share, `max_failed_rewards`.

    A single failed call among others never ends a run, so that small steps tolerate one, too.
    """
    failures: list[str] = []
    calls = 0
    for episode in episodes:
        calls += episode.reward_calls or _known_calls(episode)
        for outcome in episode.unscored:
            if outcome.unscored == "error":
                failures.append(outcome.failure)
    tolerated = 0.0
    if calls > 1:
        tolerated = max(1.0, share * calls)
    if len(failures) <= tolerated:
        return
    raise UserError(
        f"{len(failures)} of {calls} rewards of {place} failed, more than {section}.max_failed_rewards "
        f"{share:g}. The first: {failures[0]}"
    )


def _known_calls(episode: Episode) -> int:
    """Return the number of rewards in an episode that has not counted its calls."""
    calls = len(episode.unscored)
    for _, node in episode.nodes():
        calls += len(node.joint_actions)
    return calls
