"""Trees made by hand, for tests of what is counted and said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.config import Config, from_tree
from marl_ray.core.tree import Completion, Episode, JointAction, Node, Outcome, Stop, Task

TASK = Task("toy/1", "Write double.", {"entry_point": "double"})


@dataclass(frozen=True)
class Verdict:
    """Evidence of a test."""

    text: str

    def data(self) -> dict[str, Any]:
        return {"verdict": self.text}

    def lines(self) -> list[str]:
        return [f"verdict: {self.text}"]


def completion(text: str, tokens: int = 2, finish: str = "stop", version: int = 0) -> Completion:
    return Completion(tuple(range(tokens)), text, (0.0,) * tokens, finish, ((version, tokens),))


def node(
    turn: int,
    rewards: Sequence[float],
    children: Mapping[int, Node] | None = None,
    agents: int = 2,
    transitions: Mapping[int, Mapping[str, float]] | None = None,
    **outcome: Any,
) -> Node:
    """Aligned joint actions of these rewards; an answer says its turn, agent and index."""
    size = len(rewards)
    return Node(
        turn=turn,
        prompts=[f"prompt {turn}.{agent}" for agent in range(agents)],
        prompt_ids=[(1, 2)] * agents,
        completions=[[completion(f"answer {turn}.{agent}.{g}") for g in range(size)] for agent in range(agents)],
        joint_actions=[
            JointAction((g,) * agents, Outcome(reward, **outcome), reward, (reward,) * agents)
            for g, reward in enumerate(rewards)
        ],
        children=dict(children or {}),
        transitions=dict(transitions or {index: {} for index in children or {}}),
    )


def episode(root: Node | None, *stops: tuple[tuple[int, ...], str]) -> Episode:
    return Episode(TASK, root, [Stop(path, reason) for path, reason in stops])


def two_turns() -> Config:
    """The config of a run of two turns without discount."""
    return from_tree({"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, "magrpo": {"num_turns": 2}}, "magrpo")
