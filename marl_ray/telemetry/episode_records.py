"""Episodes as plain data, for episodes.jsonl and the batch log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_ray.core.episode import Episode, JointAction, Node, Stop

EpisodeRecord = dict[str, Any]


def episode_record(episode: Episode) -> EpisodeRecord:
    """Return an episode as plain data; docs/reference/metrics.md describes the keys."""
    return {
        "task": episode.task.id,
        "stops": [_stop(stop) for stop in episode.stops],
        "nodes": [_node(path, node) for path, node in episode.nodes()],
    }


def _stop(stop: Stop) -> dict[str, Any]:
    data: dict[str, Any] = {"path": list(stop.path), "reason": stop.reason}
    return data | ({"detail": stop.detail} if stop.detail else {})


def _node(path: Sequence[int], node: Node) -> dict[str, Any]:
    # `expanded` includes joint actions whose next prompt was too long.
    record: dict[str, Any] = {
        "turn": node.turn + 1,
        "path": list(path),
        "prompts": node.prompts,
        "responses": [[c.text for c in group] for group in node.completions],
        "weight_versions": [sorted({c.weight_version for c in group}) for group in node.completions],
        "joint_actions": [_joint_action(action) for action in node.joint_actions],
        "expanded": sorted({*node.children, *node.transitions}),
    }
    if any(node.other_prompts):
        record["other_prompts"] = node.other_prompts
    if node.greedy is not None:
        record["greedy"] = {"responses": [c.text for c in node.greedy.completions], "reward": node.greedy.reward}
    if node.counterfactuals:
        record["counterfactuals"] = {str(agent): rewards for agent, rewards in sorted(node.counterfactuals.items())}
    return record


def _joint_action(action: JointAction) -> dict[str, Any]:
    outcome = action.outcome
    data: dict[str, Any] = {
        "indices": list(action.indices),
        "reward": action.reward,
        "levels": dict(outcome.levels),
    }
    if any(reward != action.reward for reward in action.rewards):
        data["rewards"] = list(action.rewards)
    return data | (outcome.evidence.data() if outcome.evidence is not None else {})
