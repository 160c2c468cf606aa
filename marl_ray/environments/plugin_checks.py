"""What plug-ins give, checked where it comes in.

A wrong answer is a bug of the plug-in's author: TypeError or ValueError with one line that names class and method, and
with its traceback. What is right goes through as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from marl_ray.core.episode import Outcome

ROW_OF_A_TURN = {
    *("reward_mean", "reward_std", "reward_max_mean", "group_std_mean", "expected_return", "ended_early"),
    "greedy_reward_mean",
}
"""What a turn's part of a row has of its own, besides what starts with level/ (telemetry/metrics.py)."""
ROW = {
    *("step", "env_steps", "loss", "grad_norm", "learning_rate"),
    *("episodes", "too_long_prompts", "infra_errors"),
    *("sandbox/executions", "sandbox/executions_per_s", "sandbox/infra_errors"),
}
"""What a row has of its own, besides what starts with one of ROW_PARTS."""
ROW_PARTS = ("rollout/", "time/", "memory/", "turn_", "agent_", "policy_", "eval/")


def qualified_method_name(plugin: object, method: str) -> str:
    """How an error names it: `module:Class.method`."""
    return f"{type(plugin).__module__}:{type(plugin).__qualname__}.{method}"


def check_texts(who: str, given: Any, count: int | None = None) -> None:
    """A list of texts, `count` of them if that is given. Raises TypeError and ValueError."""
    if not isinstance(given, list | tuple):
        raise TypeError(f"{who} must give a list of texts, not {type(given).__name__}")
    for text in given:
        if not isinstance(text, str):
            raise TypeError(f"{who} must give a list of texts, and one of them is {type(text).__name__}")
    check_count(who, given, count)


def check_count(who: str, given: Sequence[Any], count: int | None) -> None:
    """One entry per agent. Raises ValueError."""
    if count is not None and len(given) != count:
        raise ValueError(f"{who} must give one entry per agent, {count}, not {len(given)}")


def check_reports(who: str, given: Any, count: int) -> None:
    """One report a program. Raises TypeError and ValueError."""
    if not isinstance(given, list | tuple):
        raise TypeError(f"{who} must give a list of reports, not {type(given).__name__}")
    if len(given) != count:
        raise ValueError(f"{who} must give one report a program, {count}, not {len(given)}")


def check_order(who: str, order: Any, num_agents: int) -> None:
    """Every agent answers once in a turn. Raises ValueError."""
    stages = order if isinstance(order, list | tuple) else ()
    agents = [agent for stage in stages for agent in (stage if isinstance(stage, list | tuple) else ())]
    if not all(stages) or sorted(agents, key=repr) != sorted(range(num_agents), key=repr):
        raise ValueError(
            f"{who} must give lists that hold each agent from 0 to {num_agents - 1} once, not {order!r:.80}"
        )


def check_outcome(who: str, outcome: Any, num_agents: int) -> None:
    """An Outcome whose rewards can be learned from and whose names leave a row's own alone.

    One with a failure is not learned from and not logged. Raises TypeError and ValueError.
    """
    if not isinstance(outcome, Outcome):
        raise TypeError(f"{who} must give an Outcome, not {type(outcome).__name__}")
    if outcome.failure:
        return
    if not _finite(outcome.reward):
        raise ValueError(f"{who} must give a reward that is a finite number, not {outcome.reward!r:.80}")
    if not isinstance(outcome.rewards, list | tuple) or len(outcome.rewards) not in (0, num_agents):
        raise ValueError(f"{who} must give no rewards or one per agent, {num_agents}, not {outcome.rewards!r:.80}")
    if not all(map(_finite, outcome.rewards)):
        raise ValueError(f"{who} must give rewards that are finite numbers, not {outcome.rewards!r:.80}")
    check_turn_metrics(who, outcome.metrics)
    check_row_names(who, "count", outcome.counts)


def check_turn_metrics(who: str, metrics: Mapping[str, float]) -> None:
    """Names of metrics that are logged as turn_1/NAME. Raises ValueError for one that the row has itself."""
    for name in metrics:
        _check_name(who, "metric", name)
        if name in ROW_OF_A_TURN or name.startswith("level/"):
            raise ValueError(f"{who} must not call a metric {name!r}: every row has its own of that name")


def check_row_names(who: str, kind: str, numbers: Mapping[str, float]) -> None:
    """Names that are logged as they are. Raises ValueError for one that the row has itself."""
    for name in numbers:
        _check_name(who, kind, name)
        if name in ROW or name.startswith(ROW_PARTS):
            raise ValueError(f"{who} must not call a {kind} {name!r}: such names are the row's own")


def _check_name(who: str, kind: str, name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{who} must name a {kind} by a text, not {name!r:.80}")


def _finite(number: Any) -> bool:
    real = isinstance(number, Real)  # NumPy's are, too
    return real and bool(abs(number) <= sys.float_info.max)
