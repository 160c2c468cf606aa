"""Validation of the values that plug-ins return.

An invalid value is a bug in the plug-in. It raises a TypeError or ValueError with one line that names class and method.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from marl_ray.core.episode import Outcome, bounded_outcome

TURN_NAMES = {
    *("reward_mean", "reward_std", "reward_max_mean", "group_std_mean", "expected_return", "ended_early"),
    "greedy_reward_mean",
}
"""Reserved metric names of a turn, besides names that start with level/ (telemetry/metrics.py)."""
ROW_NAMES = {
    *("step", "env_steps", "loss", "grad_norm", "learning_rate"),
    *("episodes", "too_long_prompts", "infra_errors"),
    *("sandbox/executions", "sandbox/executions_per_s", "sandbox/infra_errors", "sandbox/pending_max"),
}
"""Reserved names of a row, besides names that start with one of ROW_PREFIXES."""
ROLES = ("system", "user", "assistant")
"""Roles of chat messages."""
ROW_PREFIXES = ("rollout/", "time/", "memory/", "turn_", "agent_", "policy_", "eval/")


def qualified_method_name(plugin: object, method: str) -> str:
    """Return the name of a plug-in's method in errors, `module:Class.method`."""
    return f"{type(plugin).__module__}:{type(plugin).__qualname__}.{method}"


def check_texts(method: str, value: Any, count: int | None = None) -> None:
    """Check for a list of strings, with `count` entries if given. Raises TypeError or ValueError."""
    _check_list(method, value, "strings")
    for text in value:
        if not isinstance(text, str):
            raise TypeError(f"{method} must return a list of strings, but an entry is {type(text).__name__}")
    if count is not None:
        check_count(method, value, count)


def check_prompts(method: str, value: Any, count: int | None = None) -> None:
    """Check for a list of prompts, with `count` entries if given: texts, or chat messages. Raises TypeError or
    ValueError."""
    _check_list(method, value, "prompts")
    for prompt in value:
        if not isinstance(prompt, str):
            _check_chat(method, prompt)
    if count is not None:
        check_count(method, value, count)


def _check_chat(method: str, prompt: Any) -> None:
    messages = prompt if isinstance(prompt, list | tuple) else ()
    if not messages or not all(isinstance(m, Mapping) and set(m) == {"role", "content"} for m in messages):
        raise TypeError(
            f"{method} must return texts or lists of messages with role and content as prompts, not {prompt!r:.80}"
        )
    for message in messages:
        if message["role"] not in ROLES or not isinstance(message["content"], str):
            expected = f"one of the roles {', '.join(ROLES)} and a string as content"
            raise TypeError(f"{method} must return messages with {expected}, not {message!r:.80}")
    if messages[-1]["role"] != "user":
        raise ValueError(f"{method} must return messages that end with the agent's input, a message of role user")


def check_count(method: str, value: Sequence[Any], count: int) -> None:
    """Check for one entry per agent. Raises ValueError."""
    if len(value) != count:
        raise ValueError(f"{method} must return one entry per agent, {count}, not {len(value)}")


def check_reports(method: str, value: Any, count: int) -> None:
    """Check for one report per program. Raises TypeError or ValueError."""
    _check_list(method, value, "reports")
    if len(value) != count:
        raise ValueError(f"{method} must return one report per program, {count}, not {len(value)}")


def _check_list(method: str, value: Any, kind: str) -> None:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{method} must return a list of {kind}, not {type(value).__name__}")


def check_order(method: str, order: Any, num_agents: int) -> None:
    """Check that every agent answers once per turn. Raises ValueError."""
    stages = order if isinstance(order, list | tuple) else ()
    agents = [agent for stage in stages for agent in (stage if isinstance(stage, list | tuple) else ())]
    if not all(stages) or sorted(agents, key=repr) != sorted(range(num_agents), key=repr):
        expected = f"lists that contain each agent from 0 to {num_agents - 1} once"
        raise ValueError(f"{method} must return {expected}, not {order!r:.80}")


def checked_outcome(environment: Any, method: str, outcome: Any) -> Outcome:
    """Return the outcome that a method of an environment has returned; a failure in its place if one of its numbers is
    too large. Raises TypeError or ValueError for an invalid outcome."""
    if isinstance(outcome, Outcome):
        outcome = bounded_outcome(outcome)
    check_outcome(qualified_method_name(environment, method), outcome, environment.num_agents)
    return outcome


def check_outcome(method: str, outcome: Any, num_agents: int) -> None:
    """Check for an Outcome with finite rewards and without reserved names. Raises TypeError or ValueError. An outcome
    with a failure is neither logged nor learned from, so only its type is checked."""
    if not isinstance(outcome, Outcome):
        raise TypeError(f"{method} must return an Outcome, not {type(outcome).__name__}")
    if outcome.failure:
        return
    if not _finite(outcome.reward):
        raise ValueError(f"{method} must return a reward that is a finite number, not {outcome.reward!r:.80}")
    if not isinstance(outcome.rewards, list | tuple) or len(outcome.rewards) not in (0, num_agents):
        raise ValueError(f"{method} must return no rewards or one per agent, {num_agents}, not {outcome.rewards!r:.80}")
    if not all(map(_finite, outcome.rewards)):
        raise ValueError(f"{method} must return rewards that are finite numbers, not {outcome.rewards!r:.80}")
    check_turn_metrics(method, outcome.metrics)
    check_row_names(method, "count", outcome.counts)


def check_turn_metrics(method: str, metrics: Mapping[str, float]) -> None:
    """Check the names of metrics that are logged as turn_1/NAME. Raises ValueError for a reserved name."""
    for name in metrics:
        _check_name(method, "metric", name)
        if name in TURN_NAMES or name.startswith("level/"):
            raise ValueError(f"{method} must not use the metric name {name!r}, which is reserved")


def check_row_names(method: str, kind: str, numbers: Mapping[str, float]) -> None:
    """Check names that are logged unchanged. Raises ValueError for a reserved name."""
    for name in numbers:
        _check_name(method, kind, name)
        if name in ROW_NAMES or name.startswith(ROW_PREFIXES):
            raise ValueError(f"{method} must not use the {kind} name {name!r}, which is reserved")


def _check_name(method: str, kind: str, name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{method} must use a string as the name of a {kind}, not {name!r:.80}")


def _finite(number: Any) -> bool:
    real = isinstance(number, Real)  # includes NumPy scalars
    return real and bool(abs(number) <= sys.float_info.max)
