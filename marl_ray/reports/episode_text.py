"""Episodes as plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from marl_ray.core.episode import Episode, Node
from marl_ray.core.text import pluralize


def write_episode_texts(path: Path, title: str, episodes: Sequence[Episode]) -> None:
    """Write episodes to a text file."""
    path.write_text(f"{title}\n\n" + "\n".join(episode_text(episode) for episode in episodes))


def episode_text(episode: Episode) -> str:
    """Return one episode: the nodes along the first expanded joint actions, each with that joint action.

    The last node shows its first joint action. Other nodes of a tree are only counted.
    """
    reasons = Counter(stop.reason for stop in episode.stops)
    stopped = ", ".join(reason if n == 1 else f"{n} x {reason}" for reason, n in reasons.items())
    lines = ["=" * 100, f"{episode.task.id}   {stopped}".rstrip(), "=" * 100]
    node, shown = episode.root, 0
    while node is not None:
        index = min(node.children, default=min(node.transitions, default=0))
        lines += _turn_lines(node, index)
        node = node.children.get(index)
        shown += 1
    if hidden := sum(1 for _ in episode.nodes()) - shown:
        lines.append(f"--- and {pluralize(hidden, 'other node')} of the tree")
    return "\n".join(lines) + "\n"


def _turn_lines(node: Node, index: int) -> list[str]:
    action = node.joint_actions[index]
    levels = "  ".join(f"{name} {value:+.2f}" for name, value in action.outcome.levels.items())
    lines = [f"--- turn {node.turn + 1}: reward {action.reward:.2f}   ({levels})"]
    if any(reward != action.reward for reward in action.rewards):
        lines.append("rewards of the agents: " + " ".join(f"{reward:.2f}" for reward in action.rewards))
    for agent, g in enumerate(action.indices):
        lines += [f"[agent {agent} prompt]", _indent(node.prompt_of(agent, g))]
        lines += [f"[agent {agent} response]", _indent(node.completions[agent][g].text)]
    if action.outcome.evidence is not None:
        lines += action.outcome.evidence.lines()
    return lines


def _indent(text: str) -> str:
    return "\n".join(f"    | {line}" for line in text.strip("\n").split("\n"))
