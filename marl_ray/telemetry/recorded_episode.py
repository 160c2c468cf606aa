"""The turns of an episode record, along the joint actions that the episode followed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from marl_ray.core.chat import describe_prompt
from marl_ray.telemetry.episode_records import passed_of_total, recorded_prompt

Record = Mapping[str, Any]
NAME = re.compile(r"\[the (first prompt|answer of .*)\]")
"""A line that stands for a text."""


@dataclass(frozen=True, slots=True)
class Told:
    """Texts that the environment adds between two turns.

    by_agent: each agent's next prompt, with a short name in place of its first prompt and of the answers before.
    shared: the lines of all agents' texts that are neither such a name nor the heading of one.
    """

    by_agent: tuple[str, ...]
    shared: str


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
    node: Record
    parent: Record | None
    """The node that this one continues; None in the first turn."""

    @property
    def told(self) -> Told | None:
        """The texts of the environment before this turn; None in the first turn."""
        return None if self.parent is None else told_before(self.parent, self.node, self.names)

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
        for agent, number in enumerate(action["indices"]):
            prompts.append(describe_prompt(recorded_prompt(node, agent, number)))
            answers.append(node["responses"][agent][number])
        mean = fmean(other["reward"] for other in actions)
        names = agent_names(record, len(answers))
        parent = nodes[path[:-1]] if path else None
        yield RecordedTurn(node["turn"], action, mean, tuple(prompts), tuple(answers), names, node, parent)
        path = (*path, index)


def agent_names(record: Record, count: int) -> tuple[str, ...]:
    """Return the roles of the agents, or `agent 0` in records of earlier versions."""
    roles = record.get("roles") or ()
    return tuple(roles[agent] if agent < len(roles) else f"agent {agent}" for agent in range(count))


def told_before(parent: Record, node: Record, names: Sequence[str]) -> Told:
    """Return the texts of the environment before a node that continues `parent`."""
    indices = parent["joint_actions"][node["path"][-1]]["indices"]
    texts = []
    for agent, prompt in enumerate(node["prompts"]):
        known = {describe_prompt(parent["prompts"][agent]).strip(): "[the first prompt]"}
        for writer, number in enumerate(indices):
            known.setdefault(parent["responses"][writer][number].strip(), f"[the answer of {names[writer]}]")
        text = describe_prompt(prompt)
        for passage, name in known.items():
            if len(passage) > len(name):
                text = text.replace(passage, name)
        texts.append(text.strip())
    return Told(tuple(texts), "\n".join(_shared_lines(texts)))


def _shared_lines(texts: Sequence[str]) -> Iterator[str]:
    first, *others = [text.split("\n") for text in texts]
    for line, following in zip(first, [*first[1:], ""], strict=True):
        # The heading of a text that the reader has seen says nothing without it.
        if not line.strip() or NAME.fullmatch(line) or NAME.fullmatch(following):
            continue
        if all(line in lines for lines in others):
            yield line
