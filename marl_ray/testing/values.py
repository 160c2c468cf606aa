"""Checks of the values that plug-ins return: texts, prompts, numbers and outcomes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from marl_ray.core.chat import as_messages
from marl_ray.core.episode import Evidence, Outcome
from marl_ray.environments.plugin_checks import check_prompts


def require(condition: bool, message: str) -> None:
    """Raise AssertionError with `message` unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def require_text(what: str, text: Any) -> None:
    """Require a string that UTF-8 can encode; a lone surrogate would break files and requests."""
    require(isinstance(text, str), f"{what} must be a string, not {text!r}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise AssertionError(f"{what} must be encodable as UTF-8, not {text!r:.80}") from None


def require_lines(what: str, lines: Sequence[str]) -> None:
    """Require a list of strings without newlines."""
    require(isinstance(lines, list | tuple), f"{what} must be a list of lines, not {lines!r}")
    for line in lines:
        require_text(what, line)
        require("\n" not in line, f"{what} must have one fact per line, without a newline as in {line!r}")


def require_prompt(what: str, prompt: Any) -> None:
    """Require a text, or chat messages."""
    try:
        check_prompts(what, [prompt])
    except (TypeError, ValueError) as error:
        raise AssertionError(str(error)) from None
    for message in as_messages(prompt):
        require_text(what, message["content"])


def require_numbers(what: str, numbers: Mapping[str, float]) -> None:
    """Require finite numbers by name."""
    for name, number in numbers.items():
        # type(...) and not isinstance: a bool is an int, and NumPy's floats are floats.
        is_valid = isinstance(name, str) and type(number) in (int, float) and math.isfinite(number)
        require(is_valid, f"{what} must be finite numbers by name: {name!r} is {number!r}")


def require_outcome(outcome: Outcome, num_agents: int) -> None:
    """Require an outcome whose fields agree with each other and with the number of agents."""
    require(isinstance(outcome, Outcome), f"outcome must return an Outcome, not {outcome!r}")
    require_numbers("levels", outcome.levels)
    require_numbers("metrics", outcome.metrics)
    require_numbers("rewards", {"reward": outcome.reward})
    for agent, reward in enumerate(outcome.rewards):
        require_numbers("rewards", {str(agent): reward})
    if outcome.levels:
        adds_up = math.isclose(sum(outcome.levels.values()), outcome.reward, abs_tol=1e-9)
        require(adds_up, f"levels must add up to the reward: {dict(outcome.levels)} is not {outcome.reward}")
    for name, count in outcome.counts.items():
        is_count = isinstance(name, str) and type(count) is int and count >= 0
        require(is_count, f"counts must be non-negative integers by name: {outcome.counts}")
    require(
        len(outcome.rewards) in (0, num_agents),
        f"rewards must be empty or have one entry for each of {num_agents} agents: {outcome.rewards}",
    )
    require_text("failure", outcome.failure)
    if outcome.evidence is not None:
        _require_evidence(outcome.evidence)


def _require_evidence(evidence: Evidence) -> None:
    try:
        json.dumps(evidence.data())
    except (TypeError, ValueError) as error:
        raise AssertionError(f"evidence.data() must be plain data for JSON: {error}") from None
    for line in evidence.lines():
        require(isinstance(line, str), f"evidence.lines() must be strings, not {line!r}")
