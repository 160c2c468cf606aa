"""Episodes as text for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from marl_ray.core.episode import Episode, Node
from marl_ray.core.text import pluralize


def write_episode_texts(path: Path, title: str, episodes: Sequence[Episode]) -> None:
    """A file of a few episodes."""
    path.write_text(f"{title}\n\n" + "\n".join(episode_text(episode) for episode in episodes))


def episode_text(episode: Episode) -> str:
    """One episode: the nodes from the root along the first joint action that was expanded, each with that joint
    action (at the end, the first). Of a tree's other nodes only the number is said."""
    reasons = Counter(stop.reason for stop in episode.stops)
    stopped = ", ".join(reason if n == 1 else f"{n} x {reason}" for reason, n in reasons.items())
    lines = ["=" * 100, f"{episode.task.id}   {stopped}".rstrip(), "=" * 100]
    node, shown = episode.root, 0
    while node is not None:
        index = min(node.children, default=min(node.transitions, default=0))
        lines += _turn(node, index)
        node = node.children.get(index)
        shown += 1
    more = sum(1 for _ in episode.nodes()) - shown
    if more:
        lines.append(f"--- and {pluralize(more, 'node')} more of the tree")
    return "\n".join(lines) + "\n"


def _turn(node: Node, number: int) -> list[str]:
    action = node.joint_actions[number]
    levels = "  ".join(f"{name} {value:+.2f}" for name, value in action.outcome.levels.items())
    lines = [f"--- turn {node.turn + 1}: reward {action.reward:.2f}   ({levels})"]
    if any(reward != action.reward for reward in action.rewards):
        lines.append("each agent's own: " + " ".join(f"{reward:.2f}" for reward in action.rewards))
    for agent, index in enumerate(action.indices):
        prompt, answer = node.prompt_of(agent, index), node.completions[agent][index].text
        lines += [f"[agent {agent} hears]", _indent(prompt), f"[agent {agent} answers]", _indent(answer)]
    if action.outcome.evidence is not None:
        lines += action.outcome.evidence.lines()
    return lines


def _indent(text: str) -> str:
    return "\n".join(f"    | {line}" for line in text.strip("\n").split("\n"))
