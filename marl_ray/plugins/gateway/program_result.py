"""Results of programs: a reward, rewards per agent, or answers for a judge."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marl_ray.core.text import json_or


class ProgramFailed(Exception):
    """An episode without a result, for the reason in the message."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The result of an episode. `rewards` has one reward per agent, or is empty if all agents get `reward`. `answers`
    are the answers that a judge rewards, None for each agent's last completion."""

    reward: float
    rewards: tuple[float, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    answers: tuple[str, ...] | None = None


def parse_result(value: Any, names: Sequence[str], needs_reward: bool = True) -> ProgramResult:
    """Return the result that a program has given: a number, or an object.

    | key | value |
    |---|---|
    | `reward` | number; by default the mean of `rewards` |
    | `rewards` | reward by agent name, of all agents |
    | `metrics` | numbers by name, whose means are logged |
    | `failed` | reason why the episode failed, in place of the others |
    | `answers` | answer by agent name, of all agents, for a judge |

    `needs_reward` False: a judge computes the reward. Raises ProgramFailed.

    Example:
        >>> parse_result({"rewards": {"a": 1, "b": 0}}, ["a", "b"]).reward
        0.5
    """
    if _is_number(value):
        return ProgramResult(float(value))
    if not isinstance(value, Mapping):
        raise ProgramFailed(f"its result should be a number or an object with a reward, not {value!r:.80}")
    if value.get("failed"):
        raise ProgramFailed(f"the program says that it has failed: {str(value['failed'])[:200]}")
    rewards = _by_agent(value.get("rewards"), names, "rewards", _is_number)
    answers = _by_agent(value.get("answers"), names, "answers", lambda answer: isinstance(answer, str))
    given = value.get("metrics", {})
    if not isinstance(given, Mapping):
        raise ProgramFailed("metrics of its result should be numbers by name")
    metrics = {}
    for name, number in given.items():
        if not isinstance(name, str) or not _is_number(number):
            raise ProgramFailed("metrics of its result should be numbers by name")
        metrics[name] = float(number)
    reward = value.get("reward")
    if reward is None and rewards is not None:
        reward = sum(rewards) / len(rewards)
    if reward is None and not needs_reward:
        reward = 0.0  # the judge's reward takes its place
    if reward is None or not _is_number(reward):
        raise ProgramFailed(f"its result has no number as reward: {value!r:.80}")
    return ProgramResult(float(reward), tuple(map(float, rewards or ())), metrics, answers)


def parse_json(text: str, source: str) -> Any:
    """Return the value of a JSON text. Raises ProgramFailed, which names the `source`."""
    value = json_or(text, None)
    if value is None:
        raise ProgramFailed(f"{source} is not JSON: {text!r:.80}")
    return value


def _by_agent(values: Any, names: Sequence[str], key: str, is_valid: Any) -> tuple[Any, ...] | None:
    """Return the values in the order of the agents, None without values. Raises ProgramFailed."""
    if values is None:
        return None
    if not isinstance(values, Mapping) or set(values) != set(names) or not all(map(is_valid, values.values())):
        raise ProgramFailed(f"{key} of its result should have a value for each of {', '.join(names)}")
    return tuple(values[name] for name in names)


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    # An integer of JSON may be too large for a float. NaN fails the comparison.
    return abs(value) <= sys.float_info.max
