"""Joint actions without a reward: they are left out of their group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from marl_ray.config import Config
from marl_ray.core.chat import Prompt
from marl_ray.core.episode import Completion, Episode, JointAction, Node
from marl_ray.core.errors import UserError


class NoVerdict(Exception):
    """A node that is lost, for the reason of its `Stop` and with the message as its detail."""

    def __init__(self, reason: Literal["infra_error", "unscored"], detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def keep_joint_actions(node: Node, kept: Sequence[int]) -> Node:
    """Return a node without baselines that has only the joint actions `kept`, and the completions that occur in them.

    Raises NoVerdict if an agent's group would have no completion.
    """
    actions = [node.joint_actions[number] for number in kept]
    completions: list[list[Completion]] = []
    other_prompts: list[list[Prompt]] = []
    other_prompt_ids: list[list[tuple[int, ...]]] = []
    new_indices: list[dict[int, int]] = []
    for agent, sampled in enumerate(node.completions):
        used = sorted({action.indices[agent] for action in actions})
        siblings = len(node.group(agent))
        if not used or used[0] >= siblings:
            raise NoVerdict("unscored", "no joint action with a sibling of some agent has a reward")
        others = [index - siblings for index in used if index >= siblings]
        completions.append([sampled[index] for index in used])
        other_prompts.append([node.other_prompts[agent][index] for index in others])
        other_prompt_ids.append([node.other_prompt_ids[agent][index] for index in others])
        new_indices.append({old: new for new, old in enumerate(used)})
    renumbered: list[JointAction] = []
    for action in actions:
        indices = tuple(new_indices[agent][index] for agent, index in enumerate(action.indices))
        renumbered.append(replace(action, indices=indices))
    return replace(
        node,
        completions=completions,
        joint_actions=renumbered,
        other_prompts=other_prompts,
        other_prompt_ids=other_prompt_ids,
    )


def _calls_of(episode: Episode) -> int:
    """Return the number of rewards in an episode that has not counted its calls."""
    return sum(len(node.joint_actions) for _, node in episode.nodes()) + len(episode.unscored)


def check_failed_rewards(episodes: Sequence[Episode], place: str, config: Config) -> None:
    """Raise UserError if too many calls of a reward function failed in these episodes of `place`, such as "step 3".

    A single failed call among others never ends a run, so that small steps tolerate one, too.
    """
    unscored = [outcome for episode in episodes for outcome in episode.unscored]
    failures = [outcome.failure for outcome in unscored if outcome.unscored == "error"]
    calls = sum(episode.reward_calls or _calls_of(episode) for episode in episodes)
    share = config.rollout.max_failed_rewards
    tolerated = max(1.0, share * calls) if calls > 1 else 0.0
    if len(failures) <= tolerated:
        return
    raise UserError(
        f"{len(failures)} of {calls} rewards of {place} failed, more than {config.algorithm}.max_failed_rewards "
        f"{share:g}. The first: {failures[0]}"
    )
