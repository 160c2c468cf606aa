"""Validation of plug-in return values, and reserved names."""

from __future__ import annotations

import math
from typing import Any

import pytest

from marl_ray.core.batch import UpdateStats
from marl_ray.core.episode import Episode, JointAction, Node, Outcome, Task
from marl_ray.core.ids import PolicyId
from marl_ray.environments.plugin_checks import (
    check_outcome,
    check_row_names,
    check_texts,
    check_turn_metrics,
    qualified_method_name,
)
from marl_ray.telemetry.metrics import episode_metrics, rollout_metrics, update_metrics

WHO = "own:Environment.method"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("ab", "must return a list of strings, not str"),
        (None, "must return a list of strings, not NoneType"),
        (iter(["a", "b"]), "must return a list of strings, not list_iterator"),
        (["a", 3], "must return a list of strings, but an entry is int"),
        (["a"], "must return one entry per agent, 2, not 1"),
        (["a", "b", "c"], "must return one entry per agent, 2, not 3"),
    ],
)
def test_invalid_lists_of_strings(given: Any, line: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        check_texts(WHO, given, 2)
    assert str(caught.value) == f"{WHO} {line}"


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (1.0, "must return an Outcome, not float"),
        (Outcome(math.nan), "must return a reward that is a finite number, not nan"),
        (Outcome(-math.inf), "must return a reward that is a finite number, not -inf"),
        (Outcome(10**400), "must return a reward that is a finite number, not 1000"),
        (Outcome("1"), "must return a reward that is a finite number, not '1'"),  # type: ignore[arg-type]
        (Outcome(1.0, rewards=(1.0,)), "must return no rewards or one per agent, 2, not (1.0,)"),
        (Outcome(1.0, rewards=0.0), "must return no rewards or one per agent, 2, not 0.0"),  # type: ignore[arg-type]
        (Outcome(1.0, rewards=(1.0, math.nan)), "must return rewards that are finite numbers, not (1.0, nan)"),
        (Outcome(1.0, metrics={"reward_std": 1.0}), "must not use the metric name 'reward_std'"),
        (Outcome(1.0, metrics={"level/a": 1.0}), "must not use the metric name 'level/a'"),
        (Outcome(1.0, metrics={3: 1.0}), "must use a string as the name of a metric, not 3"),  # type: ignore[dict-item]
        (Outcome(1.0, counts={"step": 1}), "must not use the count name 'step'"),
        (Outcome(1.0, counts={"agent_0/loss": 1}), "must not use the count name 'agent_0/loss'"),
    ],
)
def test_invalid_outcomes(outcome: Any, line: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        check_outcome(WHO, outcome, 2)
    assert str(caught.value).startswith(f"{WHO} {line}")


def test_valid_values_pass() -> None:
    check_texts(WHO, ["a", ""], 2)
    check_texts(WHO, [])
    names = {"right": 1.0, "time_left": 2.0, "step": 3.0}
    check_outcome(WHO, Outcome(2, {"level": 2.0}, names, {"sandbox/timeouts": 1, "own/count": 2}), 2)
    check_outcome(WHO, Outcome(1.0, rewards=(True, -1.5)), 2)
    check_outcome(WHO, Outcome(math.nan, rewards=(1.0,), failure="no verdict"), 2)


def test_reserved_names_are_those_of_rows() -> None:
    actions = [JointAction((0,), Outcome(1.0, {"all": 1.0}), 1.0, (1.0,))]
    episode = Episode(Task("t", "Say.", {}), Node(1, [[]], actions), [])
    turn = [name.removeprefix("turn_2/") for name in episode_metrics([episode], 1.0, 2)]
    assert {"reward_mean", "ended_early", "level/all"} <= set(turn)
    for name in turn:
        with pytest.raises(ValueError, match=name):
            check_turn_metrics(WHO, {name: 1.0})
    stats = UpdateStats(0.0, 0.0, 0.0, 0.0, None, 0, 0)
    row = [
        *rollout_metrics([episode], 1.0),
        *update_metrics(PolicyId((0,)), stats, 1),
        "turn_1/x",
        "eval/x",
        "time/step",
    ]
    for name in set(row) - {"sandbox/untrusted", "sandbox/timeouts"}:  # counts that environments add to
        with pytest.raises(ValueError, match=name):
            check_row_names(WHO, "count", {name: 1})


def test_errors_name_class_and_method() -> None:
    class Inner: ...

    assert qualified_method_name(Inner(), "outcome").endswith("test_plugin_checks:" + Inner.__qualname__ + ".outcome")
