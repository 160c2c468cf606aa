"""The turns of an episode record, along the joint actions that the episode followed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from marl_ray.core.chat import describe_prompt
from marl_ray.telemetry.episode_records import passed_of_total, recorded_prompt

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One turn of a record, with the joint action that the next turn continues, or the first one.

    group_mean: mean reward of all joint actions of this turn.
    """

    number: int
    action: Record
    group_mean: float
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    names: tuple[str, ...]
    """Roles of the agents, or `agent 0` in records of earlier versions."""

    @property
    def reward(self) -> float:
        """The reward of the joint action."""
        return float(self.action["reward"])

    @property
    def tests(self) -> tuple[int, int] | None:
        """The passed tests and all tests; None without tests."""
        report = self.action.get("report")
        counts = passed_of_total(report)
        if counts is None or counts[1] == 0:
            return None
        return counts


def followed_turns(record: Record) -> Iterator[RecordedTurn]:
    """Yield the turns of a record, each with the first expanded joint action."""
    nodes = {tuple(node["path"]): node for node in record["nodes"]}
    path: tuple[int, ...] = ()
    while path in nodes:
        node = nodes[path]
        actions = node["joint_actions"]
        if not actions:
            return
        index = min(node["expanded"], default=0)
        action = actions[index]
        prompts = []
        answers = []
        names = []
        roles = record.get("roles") or ()
        for agent, number in enumerate(action["indices"]):
            prompts.append(describe_prompt(recorded_prompt(node, agent, number)))
            answers.append(node["responses"][agent][number])
            names.append(roles[agent] if agent < len(roles) else f"agent {agent}")
        mean = fmean(other["reward"] for other in actions)
        yield RecordedTurn(node["turn"], action, mean, tuple(prompts), tuple(answers), tuple(names))
        path = (*path, index)
