"""Measures of cooperation, by examples that are computed by hand."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from statistics import fmean

import pytest

from marl_ray.cooperation.evaluation_lines import (
    cooperation_lines,
    cross_play_estimates,
    cross_play_table,
    revision_lines,
)
from marl_ray.cooperation.recombined_answers import (
    Answers,
    Texts,
    asked_twice,
    cooperation,
    crossed,
    first_answers,
    least_contribution,
    shuffled,
    without,
)
from marl_ray.cooperation.revisions import chosen_of_2, revision_counts, revision_metrics
from marl_ray.cooperation.token_counts import token_counts
from marl_ray.core.episode import Episode, JointAction, Node, Outcome, sibling_calls
from marl_ray.core.statistics import Estimate
from tests.factories import make_completion, make_episode, make_node

ALIKE, ROLES = True, False
"""Whether agents are interchangeable."""


async def letters(joint: Sequence[Texts]) -> list[float]:
    """Return the number of different letters of each joint answer."""
    return [float(len(set("".join(texts)))) for texts in joint]


def answers(interchangeable: bool, *texts: Texts) -> Answers:
    return Answers(len(texts[0]), texts, tuple(asyncio.run(letters(texts))), interchangeable)


def test_partners_that_divide_the_work_beat_one_agent_asked_twice() -> None:
    # Own rewards 4, 2. Shuffled: ("ab", "cc") 3 and ("aa", "cd") 3. Agent 0 twice: ("ab", "aa") 2, ("aa", "ab") 2;
    # agent 1 twice: ("cd", "cc") 2, ("cc", "cd") 2. Without agent 0: 2 and 1; without agent 1: 2 and 1.
    own = answers(ALIKE, ("ab", "cd"), ("aa", "cc"))
    assert own.rewards == (4.0, 2.0)
    assert asyncio.run(cooperation(own, letters)) == {
        "cooperation/partner_shuffle": 0.0,
        "cooperation/agreement": 0.0,
        "cooperation/one_agent_twice": 2.0,
        "cooperation/over_one_agent_twice": 1.0,
        "cooperation/agent_0_contribution": 1.5,
        "cooperation/agent_1_contribution": 1.5,
    }


def test_agents_with_roles_are_not_asked_twice() -> None:
    found = asyncio.run(cooperation(answers(ROLES, ("ab", "c"), ("ab", "c")), letters))
    assert found == {
        "cooperation/partner_shuffle": 0.0,
        "cooperation/agreement": 1.0,
        "cooperation/agent_0_contribution": 2.0,
        "cooperation/agent_1_contribution": 1.0,
    }


def test_answers_come_from_other_samples() -> None:
    texts = [(f"a{s}", f"b{s}", f"c{s}") for s in range(3)]
    assert shuffled(texts) == [("a0", "b1", "c2"), ("a1", "b2", "c0"), ("a2", "b0", "c1")]
    assert asked_twice(texts, 2) == [("c0", "c1", "c2"), ("c1", "c2", "c0"), ("c2", "c0", "c1")]
    assert without(texts, 1)[0] == ("a0", "", "c0")
    assert shuffled(texts[:2]) == []  # an agent would meet its own sample
    assert crossed(texts[:1], texts[:1]) == []


def test_each_distinct_joint_answer_is_rewarded_once() -> None:
    asked: list[Texts] = []

    async def count(joint: Sequence[Texts]) -> list[float]:
        asked.extend(joint)
        return await letters(joint)

    asyncio.run(cooperation(answers(ALIKE, ("a", "a"), ("a", "a")), count))
    assert sorted(asked) == [("", "a"), ("a", ""), ("a", "a")]


def test_a_measure_without_a_verdict_is_left_out() -> None:
    async def lost(joint: Sequence[Texts]) -> list[float]:
        return [math.nan if "" in texts else 1.0 for texts in joint]

    found = asyncio.run(cooperation(answers(ROLES, ("a", "b"), ("a", "b")), lost))
    assert found.keys() == {"cooperation/partner_shuffle", "cooperation/agreement"}

    async def only_empty(joint: Sequence[Texts]) -> list[float]:
        return [1.0 if "" in texts else math.nan for texts in joint]

    found = asyncio.run(cooperation(answers(ALIKE, ("a", "b"), ("c", "d")), only_empty))
    assert found.keys() == {"cooperation/agent_0_contribution", "cooperation/agent_1_contribution"}


def test_a_single_agent_has_no_measures() -> None:
    assert asyncio.run(cooperation(answers(ALIKE, ("a",), ("b",)), letters)) == {}


def node_of(turn: int, lengths: Sequence[int], passed: bool, children: dict[int, Node] | None = None) -> Node:
    """Return a node of one joint action whose answers have these lengths."""
    node = make_node(turn, [1.0], children, agents=len(lengths), metrics={"all_passed": float(passed)})
    for agent, tokens in enumerate(lengths):
        node.calls[agent] = list(sibling_calls((), [make_completion(f"{turn}.{agent}", tokens)], agent))
    return node


def test_the_critical_path_is_the_longest_answer_of_each_round() -> None:
    episode = make_episode(node_of(0, [3, 5, 2], False, {0: node_of(1, [4, 1, 1], True)}))
    assert token_counts([episode], [[0, 1, 2]], 0.5) == {  # rewards 1 and 1
        "tokens/critical_path": 5 + 4,
        "reward_per_token/critical_path": 1.5 / 9,
        "tokens/all": 10 + 6,
        "reward_per_token/all": 1.5 / 16,
    }
    assert token_counts([episode], [[0], [1, 2]], 0.5)["tokens/critical_path"] == (3 + 5) + (4 + 1)
    assert token_counts([make_episode(None)], [[0]], 0.5) == {}


def test_the_critical_path_of_a_program_is_not_known() -> None:
    root = node_of(0, [3, 5], False)
    root.calls = [[replace(call, branch=1) for call in calls] for calls in root.calls]
    assert token_counts([make_episode(root)], [[0, 1]], 1.0) == {"tokens/all": 8, "reward_per_token/all": 1 / 8}


def test_tokens_of_a_tree_are_those_of_one_episode() -> None:
    # Two of three joint actions continue, with answers of 4 and 8 tokens, and the third ended its branch.
    root = make_node(0, [1.0, 1.0, 1.0], {0: node_of(1, [4], True), 1: node_of(1, [8], True)}, agents=1)
    root.stopped = {2: 1}
    assert token_counts([make_episode(root)], [[0]], 1.0)["tokens/all"] == 2 + (4 + 8 + 0) / 3


def revised(*pairs: tuple[bool, bool]) -> list[Episode]:
    return [make_episode(node_of(0, [1, 1], a, {0: node_of(1, [1, 1], b)})) for a, b in pairs]


def test_revisions_are_counted_by_the_answer_before() -> None:
    episodes = revised((True, True), (True, False), (False, True), (False, False), (False, False))
    assert revision_counts(episodes) == {2: (1, 2, 1, 3)}
    # pass@2: 2 of 5 first answers pass: 1 - (3 * 2) / (5 * 4).
    assert revision_metrics(episodes, 2) == {
        "turn_2/keep_rate": 0.5,
        "turn_2/fix_rate": pytest.approx(1 / 3),
        "turn_2/first_pass@2": pytest.approx(0.7),
    }
    (line,) = revision_lines("base", episodes)
    assert line == (
        "base: turn 2 keeps 1 of 2 passing answers and mends 1 of 3 failing ones; one of two first answers passes in "
        "0.700"
    )


def test_the_visible_tests_choose_one_of_two_first_answers() -> None:
    verdicts = [(0, 0), (1, 0), (1, 1), (0, 0)]  # (visible tests, all tests) of four first answers
    actions = []
    for g, (visible, hidden) in enumerate(verdicts):
        metrics = {"visible_passed": float(visible), "all_passed": float(hidden)}
        actions.append(JointAction((g,), Outcome(0.0, metrics=metrics), 0.0, (0.0,)))
    root = replace(make_node(0, [0.0] * 4, agents=1), joint_actions=actions)
    pairs = []
    for first, second in permutations(range(4), 2):
        visible, hidden = verdicts[first]
        pairs.append(hidden if visible else verdicts[second][1])
    assert chosen_of_2([make_episode(root)]) == pytest.approx(fmean(pairs))
    assert chosen_of_2([make_episode(make_node(0, [1.0, 0.0]))]) is None, "without visible tests"


def test_rates_without_an_answer_are_left_out() -> None:
    assert revision_metrics(revised((True, True)), 2) == {"turn_2/keep_rate": 1.0}
    assert revision_metrics([make_episode(make_node(0, [1.0, 0.0]))], 1) == {}
    solved = make_episode(node_of(0, [1, 1], True), ((0,), "solved"))
    assert revision_metrics([solved, solved], 2) == {"turn_2/first_pass@2": 1.0}


def test_first_answers_are_the_joint_actions_of_turn_one() -> None:
    found = first_answers([make_episode(make_node(0, [1.0, 2.0])), make_episode(None)])
    assert found is not None
    assert found.texts == (("answer 0.0.0", "answer 0.1.0"), ("answer 0.0.1", "answer 0.1.1"))
    assert found.rewards == (1.0, 2.0)
    assert not found.interchangeable
    assert first_answers([make_episode(None)]) is None


def test_agents_are_interchangeable_by_equal_prompts_or_if_the_environment_says_so() -> None:
    node = make_node(0, [1.0, 2.0])
    for prompts, declared, expected in (
        (["first reader", "second reader"], True, True),
        (["first reader", "second reader"], False, False),
        (["reader", "reader"], False, True),
    ):
        for agent, prompt in enumerate(prompts):
            node.calls[agent] = [replace(call, prompt=prompt) for call in node.calls[agent]]
        found = first_answers([make_episode(node)], declared)
        assert found is not None
        assert found.interchangeable is expected


def test_joint_actions_that_share_completions_are_not_independent() -> None:
    node = make_node(0, [1.0, 2.0])
    crossed_actions = [replace(node.joint_actions[0], indices=pair) for pair in ((0, 1), (1, 0))]
    node.joint_actions[1:1] = crossed_actions
    found = first_answers([make_episode(node)])
    assert found is not None
    assert found.texts == (("answer 0.0.0", "answer 0.1.0"), ("answer 0.0.1", "answer 0.1.1"))
    assert first_answers([make_episode(node)], limit=1) == replace(found, texts=found.texts[:1], rewards=(1.0,))
    node.joint_actions = crossed_actions
    assert first_answers([make_episode(node)]) is None


def test_an_agent_that_contributes_nothing_is_named() -> None:
    numbers = {
        "cooperation/agent_0_contribution": Estimate(0.01, -0.02, 0.04, 9),
        "cooperation/agent_1_contribution": Estimate(1.0, 0.9, 1.1, 9),
    }
    assert least_contribution({name: estimate.mean for name, estimate in numbers.items()}) == 0
    assert least_contribution({}) is None
    (line,) = cooperation_lines({"run": numbers, "other": {}})
    assert line.startswith("run: agent 0 contributes least, 0.010 [-0.020, 0.040]")
    assert line.endswith("a free rider")


def test_cross_play_means_are_over_tasks() -> None:
    rewards = {("a", "a"): [4.0, 2.0], ("a", "b"): [1.0, 1.0], ("b", "a"): [0.0, math.nan], ("b", "b"): [3.0, 3.0]}
    matrix = cross_play_estimates(rewards, 1)
    assert {pair: estimate.mean for pair, estimate in matrix.items()} == {
        ("a", "a"): 3.0,
        ("a", "b"): 1.0,
        ("b", "a"): 0.0,
        ("b", "b"): 3.0,
    }
    *_, last = cross_play_table(matrix)
    assert last == "with the own partner 3.000, with a partner of another model 0.500"
    assert cross_play_estimates({}, 1) == {}
