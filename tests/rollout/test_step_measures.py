"""Measures of cooperation and of credit in training: rewards known without an execution, and numbers by hand."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pvariance, variance
from typing import Any

import pytest

from marl_ray.config import Config, from_tree
from marl_ray.core.episode import Episode, Node, Outcome, Task
from marl_ray.core.statistics import rank_correlation
from marl_ray.credit.groups import build_group
from marl_ray.environments.base import Environment
from marl_ray.rollout.step_measures import MAX_SCORED_EPISODES, MAX_SCORED_SAMPLES, StepMeasures
from tests.rollout.counting import Counting, Sum, run_batch, tree_config
from tests.rollout.helpers import NoExecutor

SHUFFLE = {"cooperation/partner_shuffle", "cooperation/agreement"}
TWICE = {"cooperation/one_agent_twice", "cooperation/over_one_agent_twice"}
CONTRIBUTIONS = {"cooperation/agent_0_contribution", "cooperation/agent_1_contribution"}


class Product(Counting):
    """Counting whose reward is the product of all numbers, each plus 1; an empty answer counts as 0. The attributes
    claim that there are programs, so that only rewards of executed joint actions are known."""

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Sum:
        return Sum([text or "0" for text in responses], last)

    def outcome(self, attempt: Sum, report: Any | None) -> Outcome:
        return Outcome(float(math.prod(number + 1 for number in attempt.numbers)))


class Readers(Product):
    """Product without programs and with agents that may take each other's place."""

    interchangeable_agents = True
    runs_programs = False


class FreeSum(Counting):
    """Counting whose joint answers are scored without an execution."""

    runs_programs = False

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Sum:
        return Sum([text or "0" for text in responses], last)


class OneWorks(Readers):
    """Readers whose reward is the number of the first agent."""

    def outcome(self, attempt: Sum, report: Any | None) -> Outcome:
        return Outcome(float(attempt.numbers[0]))


class InTurn(Readers):
    """Readers who answer one after another."""

    def order(self, task: Task) -> list[list[int]]:
        return [[0], [1]]


def measured(
    run: Config, environment: Environment, episodes: Sequence[Episode] | None = None, evaluation: bool = False
) -> tuple[dict[str, float], Sequence[Episode]]:
    """Return the measures of a batch of two tasks, and its episodes."""
    given = run_batch(run, environment) if episodes is None else episodes
    measures = StepMeasures(run, environment, NoExecutor())
    return asyncio.run(measures.measure(given, evaluation)), given


def config(**settings: Any) -> Config:
    return tree_config(**({"num_turns": 1, "num_generations": 5} | settings))


def cooperation_names(found: dict[str, float]) -> set[str]:
    return {name for name in found if name.startswith("cooperation/")}


def numbers(episode: Episode) -> list[list[int]]:
    """Return each agent's numbers in turn 1, plus 1."""
    assert episode.root is not None
    return [[int(call.completion.text) + 1 for call in calls] for calls in episode.root.calls]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, set()),
        ({"joint_mode": "cross"}, SHUFFLE),
        ({"estimator": "difference"}, CONTRIBUTIONS),
        ({"estimator": "shapley"}, CONTRIBUTIONS),
        ({"estimator": "difference", "joint_mode": "cross"}, SHUFFLE | CONTRIBUTIONS),
        ({"estimator": "difference", "counterfactual": "siblings"}, SHUFFLE),
    ],
)
def test_only_executed_joint_actions_are_known_where_there_are_programs(
    settings: dict[str, Any], expected: set[str]
) -> None:
    found, _ = measured(config(**settings), Product(2))
    assert cooperation_names(found) == expected
    assert {"tokens/critical_path", "tokens/all", "agent_0/turn_1/credit_variance"} <= found.keys()
    replayed = "siblings" in settings.values() or "cross" in settings.values()
    assert ("agent_1/turn_1/influence" in found) is replayed


def test_an_environment_without_programs_has_all_measures_of_the_first_siblings() -> None:
    found, episodes = measured(config(), Readers(2))
    assert cooperation_names(found) == SHUFFLE | TWICE | CONTRIBUTIONS
    gains, twice = [], []
    for episode in episodes:
        a, b = (own[:MAX_SCORED_SAMPLES] for own in numbers(episode))
        size = range(len(a))
        reward = fmean(a[s] * b[s] for s in size)
        twice.append(fmean(fmean(own[s] * own[(s + 1) % len(own)] for s in size) for own in (a, b)))
        gains.append(reward - twice[-1])
        assert len(a) == MAX_SCORED_SAMPLES < 5
    assert found["cooperation/one_agent_twice"] == pytest.approx(fmean(twice))
    assert found["cooperation/over_one_agent_twice"] == pytest.approx(fmean(gains))


def test_evaluations_recombine_all_answers_and_have_no_credit() -> None:
    found, episodes = measured(config(), Readers(2), evaluation=True)
    expected = [fmean(x * y - y for x, y in zip(*numbers(episode), strict=True)) for episode in episodes]
    assert found["cooperation/agent_0_contribution"] == pytest.approx(fmean(expected))
    assert not any(name.startswith("agent_") for name in found)


def test_a_step_recombines_the_first_episodes_where_every_answer_has_to_be_scored() -> None:
    run = config()
    first, other = run_batch(run, Readers(2))

    def shuffled(*episodes: Episode) -> float:
        return measured(run, Readers(2), episodes)[0]["cooperation/partner_shuffle"]

    assert shuffled(first) != shuffled(other)
    assert shuffled(*[first] * MAX_SCORED_EPISODES, other) == shuffled(first)


@pytest.mark.parametrize(("setting", "training"), [("free", False), ("eval", False), ("always", True)])
def test_a_setting_executes_the_other_combinations(setting: str, training: bool) -> None:
    tree = {"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, "output": {"measure_cooperation": setting}}
    run = from_tree(tree | {"magrpo": {"num_turns": 1, "num_generations": 3, "max_new_tokens": 8}}, "magrpo")
    assert cooperation_names(measured(run, Product(2))[0]) == (SHUFFLE | CONTRIBUTIONS if training else set())
    evaluated = cooperation_names(measured(run, Product(2), evaluation=True)[0])
    assert evaluated == (set() if setting == "free" else SHUFFLE | CONTRIBUTIONS)


def test_influence_is_the_share_of_the_variance_that_an_answer_changes() -> None:
    found, episodes = measured(config(joint_mode="cross"), Product(2))
    for agent in (0, 1):
        own, total = 0.0, 0.0
        for episode in episodes:
            mine, theirs = numbers(episode)[agent], numbers(episode)[1 - agent]
            own += fmean(variance([x * y for x in mine]) for y in theirs)
            total += variance([x * y for x, y in zip(mine, theirs, strict=True)])
        assert found[f"agent_{agent}/turn_1/influence"] == pytest.approx(own / total)
    free_rider, _ = measured(config(), OneWorks(2))
    assert free_rider["agent_1/turn_1/influence"] == 0
    assert free_rider["cooperation/agent_1_contribution"] == 0
    assert free_rider["agent_0/turn_1/influence"] == pytest.approx(1)


def test_credit_that_replays_partners_is_faithful_where_contributions_add_up() -> None:
    # In a sum the difference to the siblings beside one partner is the difference beside any partner.
    replayed, _ = measured(config(estimator="difference", counterfactual="siblings"), Counting(2))
    assert replayed["agent_0/turn_1/credit_fidelity"] == pytest.approx(1)
    shared, episodes = measured(config(), FreeSum(2))
    fidelity = shared["agent_0/turn_1/credit_fidelity"]
    pairs = []
    for episode in episodes:
        a, b = numbers(episode)
        mean, samples = fmean(x + y for x, y in zip(a, b, strict=True)), range(MAX_SCORED_SAMPLES)
        others = {s: fmean(a[g] for g in samples if g != s) for s in samples}
        pairs += [(a[g] + b[g] - mean, fmean(a[g] - others[s] for s in samples if s != g)) for g in samples]
    assert fidelity == pytest.approx(rank_correlation(pairs))
    assert fidelity < 1


def test_joint_mode_cross_has_no_fidelity_because_its_credit_is_the_replay() -> None:
    found, _ = measured(config(joint_mode="cross"), Product(2))
    assert "agent_0/turn_1/credit_fidelity" not in found


def test_nodes_whose_rewards_are_known_by_chance_are_not_selected() -> None:
    # The replays of equal answers are known in every joint mode. The second task has different answers.
    run = config()
    episodes = run_batch(run, Product(2))
    root = episodes[0].root
    assert root is not None
    for calls in root.calls:
        calls[:] = [replace(call, completion=calls[0].completion) for call in calls]
    root.joint_actions = [replace(action, reward=1.0) for action in root.joint_actions]
    found, _ = measured(run, Product(2), episodes)
    assert cooperation_names(found) == set()
    assert "agent_0/turn_1/influence" not in found
    assert "agent_0/turn_1/credit_variance" in found


@pytest.mark.parametrize("estimator", ["magrpo", "marloo", "difference"])
def test_credit_variance_is_that_of_the_advantages_at_a_node(estimator: str) -> None:
    run = config(estimator=estimator)
    found, episodes = measured(run, Product(2))
    roots: list[Node] = [episode.root for episode in episodes if episode.root is not None]
    expected = fmean(pvariance([5 * weight for weight in build_group(root, 1, run).weights]) for root in roots)
    assert found["agent_1/turn_1/credit_variance"] == pytest.approx(expected)


def test_trees_have_the_diagnostics_of_one_branch() -> None:
    run = config(num_turns=2, num_generations=3, handoff="all")
    found, _ = measured(run, Readers(2))
    assert {f"agent_{agent}/turn_{turn}/influence" for agent, turn in itertools.product((0, 1), (1, 2))} <= found.keys()
    assert "agent_0/turn_1/credit_fidelity" not in found  # its returns contain rewards of turn 2
    assert "agent_0/turn_2/credit_fidelity" in found


@pytest.mark.parametrize("settings", [{"estimator": "reinforce_pp"}, {"critic": "iac"}])
def test_credit_that_is_known_for_the_batch_only_is_left_out(settings: dict[str, Any]) -> None:
    found, _ = measured(config(**settings), Readers(2))
    assert "agent_0/turn_1/credit_variance" not in found
    assert "agent_0/turn_1/credit_fidelity" not in found
    assert "agent_0/turn_1/influence" in found


def test_agents_that_answer_in_turn_and_single_agents_are_not_recombined() -> None:
    found, _ = measured(config(), InTurn(2))
    assert {name.partition("/")[0] for name in found} == {"tokens", "reward_per_token", "agent_0", "agent_1"}
    assert {name.rpartition("/")[2] for name in found if name.startswith("agent")} == {"credit_variance"}
    alone, _ = measured(tree_config(1, num_turns=1), Readers(1))
    assert {name.partition("/")[0] for name in alone} == {"tokens", "reward_per_token"}


def test_ranks_of_equal_values_are_their_mean() -> None:
    assert rank_correlation([(1.0, 1.0), (2.0, 2.0), (2.0, 3.0), (5.0, 9.0)]) == pytest.approx(0.9486833)
    assert rank_correlation([(1.0, 1.0), (1.0, 2.0)]) is None
    assert rank_correlation([(1.0, 1.0)]) is None


def test_a_huge_reward_of_a_replay_leaves_the_credit_of_its_step_out() -> None:
    class Huge(FreeSum):
        def outcome(self, attempt: Sum, report: Any) -> Outcome:
            rewarded = super().outcome(attempt, report)
            return replace(rewarded, reward=1e300) if attempt.numbers == [1, 5] else rewarded

    given = config(num_generations=2)
    found, episodes = measured(given, Huge(2))
    assert episodes[0].root is not None
    assert [episodes[0].root.texts(action) for action in episodes[0].root.joint_actions] == [("1", "1"), ("0", "5")]
    assert "agent_0/turn_1/credit_variance" in found
    assert "agent_0/turn_1/influence" not in found
