"""`external.stop`: a joint action that solves its task ends its own branch and keeps its reward; `num_generations` per
turn grows a tree at the budget of a chain."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from marl_ray.config import Config
from marl_ray.config.learning_rules import unused_discount
from marl_ray.core.episode import Episode, Node, Outcome
from marl_ray.core.errors import UserError
from marl_ray.core.state import TrainerState
from marl_ray.credit.groups import build_group
from marl_ray.credit.returns import action_returns, expected_return
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.environments.execution import ExecutionEvidence
from marl_ray.rollout.turn_player import TurnPlayer
from marl_ray.sandbox import ExecutionReport, TestResult
from marl_ray.telemetry.metrics import episode_metrics, evaluation_row, rollout_row
from tests.factories import make_config, make_episode, make_node
from tests.rollout.counting import TASKS, Counting, Dice, Sum, run_batch
from tests.rollout.helpers import NoExecutor


class Even(Counting):
    """Counting in which an even sum solves the task."""

    def outcome(self, attempt: Sum, report: Any | None) -> Outcome:
        outcome = super().outcome(attempt, report)
        return replace(outcome, metrics={"all_passed": float(outcome.reward % 2 == 0)})


def stop_config(stop: str = "all", **settings: Any) -> Config:
    given = {"num_agents": 2, "num_turns": 2, "num_generations": 3, "max_new_tokens": 8} | settings
    return make_config(sections={"external": {"stop": stop}}, **given)


def solved_paths(episode: Episode) -> set[tuple[int, ...]]:
    return {stop.path for stop in episode.stops if stop.reason == "solved"}


@pytest.mark.parametrize("stop", ["all", "visible"])
def test_each_joint_action_of_a_tree_stops_by_itself(stop: str) -> None:
    for episode in run_batch(stop_config(stop, handoff="all"), Even(2)):
        root = episode.root
        assert root is not None
        even = {g for g, action in enumerate(root.joint_actions) if action.reward % 2 == 0}
        assert solved_paths(episode) == {(g,) for g in even}
        assert root.children.keys() == {0, 1, 2} - even
        assert root.stopped == dict.fromkeys(even, 1)


def test_a_chain_stops_where_the_drawn_joint_action_solves_the_task() -> None:
    stopped = run_batch(stop_config(), Even(2))
    played = run_batch(stop_config("never"), Even(2))
    for one, other in zip(stopped, played, strict=True):
        assert one.root is not None
        assert other.root is not None
        assert one.root.joint_actions == other.root.joint_actions
        (drawn,) = other.root.children  # the same draw, whether it stops or not
        ends = other.root.joint_actions[drawn].reward % 2 == 0
        assert solved_paths(one) == ({(drawn,)} if ends else set())
        assert one.root.children.keys() == (set() if ends else {drawn})


def test_handoff_visible_continues_a_joint_action_that_passes_the_visible_tests() -> None:
    found = set()
    for seed in range(20):
        run = stop_config("never", handoff="visible")
        for episode in run_batch(replace(run, seed=seed), Even(2)):
            assert episode.root is not None
            (chosen,) = episode.root.children
            even = [action.reward % 2 == 0 for action in episode.root.joint_actions]
            assert even[chosen] or not any(even)
            if all(even):
                found.add(chosen)
    assert len(found) > 1, "drawn among the passing ones"


@pytest.mark.parametrize(("eval_handoff", "children"), [("random", 1), ("all", 3)])
def test_evaluations_have_a_handoff_of_their_own(eval_handoff: str, children: int) -> None:
    run = stop_config("never", handoff="best", eval_handoff=eval_handoff, eval_num_generations=3)
    player = TurnPlayer(run, Counting(2), [Dice(1000), Dice(1000)], NoExecutor())
    episodes = asyncio.run(player.evaluate([replace(TASKS[0], id=str(number)) for number in range(8)]))
    continued_best = []
    for episode in episodes:
        assert episode.root is not None
        assert len(episode.root.children) == children
        rewards = [action.reward for action in episode.root.joint_actions]
        continued_best.append(set(episode.root.children) == {rewards.index(max(rewards))})
    assert not all(continued_best)
    metrics = episode_metrics(episodes, 1.0, 2, eval_handoff == "all")
    row = evaluation_row(run.training, run.external, TrainerState(0, 0, 0), episodes, {"eval": 1.0})
    assert row["eval/turn_2/reward_mean"] == metrics["turn_2/reward_mean"]


def test_an_environment_without_all_passed_cannot_stop() -> None:
    with pytest.raises(UserError, match=r"Counting reports no metric all_passed, which external\.stop all reads"):
        run_batch(stop_config(), Counting(2))


def test_visible_reads_only_the_tests_that_feedback_may_mention() -> None:
    environment = CodeGeneration(2, sandbox_slice=1)
    tests = tuple(TestResult(status, source=f"assert f({n}) == 0") for n, status in enumerate(("pass", "fail")))
    report = ExecutionReport(tests, None, "", 0.0, 0.0, "process", trusted=True)
    outcome = Outcome(0.0, metrics={"all_passed": 0.0, "tests_passed_rate": 0.5}, evidence=ExecutionEvidence(report))
    attempt: Any = None
    assert environment.solved(attempt, outcome, "visible")
    assert not environment.solved(attempt, outcome, "all")
    assert not CodeGeneration(2, sandbox_slice=-1).solved(attempt, outcome, "visible")
    without_main = replace(outcome, metrics={"all_passed": 0.0, "tests_passed_rate": 0.0})
    assert not environment.solved(attempt, without_main, "visible")


def tree() -> Node:
    """Return a tree of three turns with two joint actions: the first solves the task in turn 1, the second leads to a
    node of which the first joint action solves it."""
    leaf = make_node(2, [0.0, 3.0])
    below = make_node(1, [4.0, 2.0], {1: leaf})
    below.stopped = {0: 1}
    root = make_node(0, [4.0, 1.0], {1: below})
    root.stopped = {0: 2}
    return root


def test_a_stopped_joint_action_keeps_its_reward_in_the_returns() -> None:
    # Below: 4 + 0.5 * 4 = 6 and 2 + 0.5 * 1.5 = 2.75. At the root: 4 + 0.5 * 4 + 0.25 * 4 = 7 and 1 + 0.5 * 4.375.
    root = tree()
    assert action_returns(root.children[1], 0, 0.5, True) == [6.0, 2.75]
    assert action_returns(root, 0, 0.5, True) == [7.0, 3.1875]
    assert action_returns(root, 0, 0.5, False) == [4.0, 1.0]
    # Expected return: the mean of the joint actions and the discounted mean of the continuations.
    assert expected_return(root.children[1], 0.5) == 3.0 + 0.5 * (4.0 + 1.5) / 2
    assert expected_return(root, 0.5) == 2.5 + 0.5 * ((4.0 + 0.5 * 4.0) + 4.375) / 2


def test_a_stopped_joint_action_counts_in_later_turns() -> None:
    row = episode_metrics([make_episode(tree(), ((0,), "solved"), ((1, 0), "solved"))], 1.0, 3, whole=True)
    assert row["turn_1/reward_mean"] == 2.5
    # Turn 2: the node below, and one node of 4s. Turn 3: one node each from the leaf and (1, 0), two from (0,).
    assert row["turn_2/reward_mean"] == (3.0 + 4.0) / 2
    assert row["turn_2/ended_early"] == 0.5
    assert row["turn_3/reward_mean"] == (1.5 + 4.0 + 4.0 + 4.0) / 4
    assert row["turn_3/ended_early"] == 0.75
    assert row["turn_2/expected_return"] == ((3.0 + (4.0 + 1.5) / 2) + 8.0) / 2


def test_a_stopped_joint_action_counts_as_one_node_of_a_later_turn_with_other_groups() -> None:
    # Four joint actions, of which two stop; the others lead to nodes of one joint action.
    root = make_node(0, [4.0, 4.0, 1.0, 2.0], {2: make_node(1, [1.0]), 3: make_node(1, [3.0])})
    root.stopped = {0: 1, 1: 1}
    row = episode_metrics([make_episode(root, ((0,), "solved"), ((1,), "solved"))], 1.0, 2, whole=True)
    assert row["turn_2/reward_mean"] == (4.0 + 4.0 + 1.0 + 3.0) / 4
    assert row["turn_2/ended_early"] == 0.5


def test_stops_are_counted_where_they_are_configured() -> None:
    episodes = [make_episode(tree(), ((0,), "solved"), ((1, 0), "solved"))]
    run = stop_config(handoff="all", num_turns=3)
    assert rollout_row(run.training, run.external, episodes, [], 1.0, 0)["rollout/solved"] == 2
    never = stop_config("never")
    assert "rollout/solved" not in rollout_row(never.training, never.external, episodes, [], 1.0, 0)


def test_group_sizes_per_turn_credit_the_first_turn_with_the_second() -> None:
    run = stop_config("never", handoff="all", num_generations=[3, 1])
    episodes = run_batch(run, Counting(2))
    for episode in episodes:
        root = episode.root
        assert root is not None
        assert [len(node.joint_actions) for _, node in episode.nodes()] == [3, 1, 1, 1]
        totals = [a.reward + root.children[g].joint_actions[0].reward for g, a in enumerate(root.joint_actions)]
        assert build_group(root, 0, run).returns == tuple(totals)
        assert all(build_group(child, 0, run).weights == (0.0,) for child in root.children.values())


def test_a_group_of_one_has_no_weight_for_estimators_that_compare_siblings() -> None:
    for estimator in ("magrpo", "marloo", "maremax"):
        run = stop_config("never", handoff="all", num_generations=[3, 1], estimator=estimator)
        assert build_group(make_node(1, [2.0]), 0, run).weights == (0.0,)


@pytest.mark.parametrize(
    ("sections", "settings", "message"),
    [
        ({}, {"num_generations": [4, 2], "num_turns": 3}, "num_generations has 2 values for 3 turns"),
        ({}, {"num_generations": [4, 1], "num_turns": 2}, "set magrpo.handoff to all"),
        ({}, {"num_generations": [4, 0], "num_turns": 2}, "num_generations should be"),
        (
            {},
            {"num_generations": [4, 2], "num_turns": 2, "early_termination_threshold": 2.0},
            "set it to null, or use external.stop",
        ),
        ({}, {"critic_body": "own"}, "critic_body own is for critic iac, not none"),
        ({}, {"clip_separately": True}, "clip_separately is for critic iac with critic_body shared"),
        ({"external": {"stop": "all"}}, {"num_turns": 1}, "num_turns is 1: set it to never"),
        ({"external": {"stop": "all"}}, {"num_turns": 2, "critic": "iac", "handoff": "all"}, "external.stop to never"),
    ],
)
def test_settings_that_cannot_work_are_rejected(
    sections: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_config(sections=sections, **settings)


def test_a_discount_that_does_nothing_is_told() -> None:
    assert unused_discount(make_config(num_turns=2, discount=0.9, handoff="all").training, "magrpo") is None
    assert unused_discount(make_config(num_turns=2).training, "magrpo") is None
    note = unused_discount(make_config(num_turns=2, discount=0.9, num_generations=8).training, "magrpo")
    assert note is not None
    assert note.endswith("at the same budget with num_generations [8, 1]")
    note = unused_discount(make_config(discount=0.9).training, "magrpo")
    assert note == "magrpo.discount 0.9 has no effect: there is one turn"
