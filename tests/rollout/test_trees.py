"""Episode trees, with an environment that runs no code and generators that answer from their seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from marl_ray.config import Config, from_tree
from marl_ray.core.episode import Episode, Generation, Outcome, SamplingSpec, Task
from tests.rollout.counting import Counting, Dice, Sum, run_batch, tree_config


def joint_samples(episodes: Sequence[Episode]) -> int:
    return sum(len(node.joint_actions) for episode in episodes for _, node in episode.nodes())


def test_a_tree_contains_every_joint_sample() -> None:
    # Two tasks, G = 2, two agents, two turns, cross, all: 2 x (4 + 16).
    episodes = run_batch(tree_config(joint_mode="cross", handoff="all"), Counting(2))
    assert joint_samples(episodes) == 2 * (4 + 16)
    for episode in episodes:
        paths = [path for path, _ in episode.nodes()]
        assert paths == [(), (0,), (1,), (2,), (3,)]
        for path, node in episode.nodes():
            assert node.turn == len(path)


@pytest.mark.parametrize(
    ("mode", "handoff", "turns", "agents", "count"),
    [
        ("aligned", "random", 3, 2, 2 * (2 + 2 + 2)),
        ("aligned", "all", 3, 2, 2 * (2 + 4 + 8)),
        ("cross", "best", 2, 3, 2 * (8 + 8)),
        ("cross", "all", 2, 1, 2 * (2 + 4)),
        ("cross", "all", 1, 3, 2 * 8),
    ],
)
def test_tree_sizes(mode: str, handoff: str, turns: int, agents: int, count: int) -> None:
    run = tree_config(agents, joint_mode=mode, handoff=handoff, num_turns=turns)
    assert joint_samples(run_batch(run, Counting(agents))) == count


def test_children_follow_their_own_joint_action_and_stream() -> None:
    dice = [Dice(1000), Dice(1000)]
    (episode, _) = run_batch(tree_config(joint_mode="cross", handoff="all"), Counting(2), dice)
    root = episode.root
    assert root is not None
    for index, child in root.children.items():
        action = root.joint_actions[index]
        said = [root.calls[agent][action.indices[agent]].completion.text for agent in (0, 1)]
        for agent in (0, 1):
            assert f"Your previous answer:\n{said[agent]}" in child.prompts[agent]
            assert f"sum: {action.reward:g}" in child.prompts[agent]
    seeds = [sampling.seed for die in dice for _, sampling in die.requests]
    assert len(set(seeds)) == len(seeds) == 2 * 2 * (1 + 4)


def test_streams_of_a_chain_do_not_depend_on_the_handoff() -> None:
    seeds = []
    for handoff in ("random", "best"):
        dice = [Dice(1000)]
        run_batch(tree_config(1, handoff=handoff, num_generations=3), Counting(1), dice)
        seeds.append([sampling.seed for _, sampling in dice[0].requests])
    assert seeds[0] == seeds[1]


def test_each_agent_samples_with_its_own_settings() -> None:
    run = from_tree(
        {
            "dataset": {"name": "bundled:toy"},
            "agents": [
                {"name": "m", "temperature": 0.5, "max_new_tokens": 8},
                {"name": "n", "top_p": 0.9, "max_new_tokens": 16},
            ],
            "magrpo": {"num_generations": 2},
        },
        "magrpo",
    )
    dice = [Dice(), Dice()]
    run_batch(run, Counting(2), dice)
    first, second = (die.requests[0][1] for die in dice)
    assert (first.temperature, first.top_p, first.max_new_tokens) == (0.5, 1.0, 8)
    assert (second.temperature, second.top_p, second.max_new_tokens) == (0.8, 0.9, 16)


def test_rewards_of_roles_reach_the_joint_actions() -> None:
    run = tree_config(num_turns=1)
    (episode, _) = run_batch(run, Counting(2, own=True))
    assert episode.root is not None
    for action in episode.root.joint_actions:
        said = [float(episode.root.calls[a][action.indices[a]].completion.text) for a in (0, 1)]
        assert action.rewards == tuple(said)
        assert action.reward == sum(said)


def test_a_lost_branch_is_one_stop_and_other_branches_continue() -> None:
    run = tree_config(handoff="all", num_generations=2, joint_mode="cross")
    lost = 0
    for episode in run_batch(run, Counting(2, fails_at_last=4)):
        assert episode.root is not None
        missing = [index for index in range(4) if index not in episode.root.children]
        assert [stop.path for stop in episode.stops] == [(index,) for index in missing]
        assert {(stop.reason, stop.detail) for stop in episode.stops} <= {("infra_error", "the abacus broke")}
        assert sorted(episode.root.transitions) == [0, 1, 2, 3]
        lost += len(missing)
    assert 0 < lost < 8, "some, not all"


@pytest.mark.parametrize("huge", [1e300, -1e7, 10**400, float("inf")])
def test_a_huge_reward_is_the_failure_of_its_episode(huge: float) -> None:
    class Huge(Counting):
        def outcome(self, attempt: Sum, report: Any) -> Outcome:
            rewarded = super().outcome(attempt, report)
            return replace(rewarded, reward=huge) if attempt.numbers == [1, 5] else rewarded

    failed = []
    for episode in run_batch(tree_config(num_turns=1), Huge(2)):
        failed += [stop.detail for stop in episode.stops]
        assert (episode.root is None) == bool(episode.stops)
    (detail,) = failed
    assert detail.startswith("the reward ")
    assert detail.endswith(" is beyond 1e+06")


def test_stops_do_not_depend_on_the_order_of_events() -> None:
    class Late(Dice):
        async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
            if "previous" not in prompt:
                return await super().generate(prompt, sampling)
            for _ in range(random.Random(sampling.seed).randrange(20)):
                await asyncio.sleep(0)
            return Generation((1,), ())

    run = tree_config(joint_mode="cross", handoff="all")
    for episode in run_batch(run, Counting(2), [Late(), Late()]):
        assert [stop.path for stop in episode.stops] == [(0,), (1,), (2,), (3,)]
        assert {stop.reason for stop in episode.stops} == {"prompt_too_long"}
        assert [path for path, _ in episode.nodes()] == [()]


def test_an_early_termination_is_a_leaf() -> None:
    run = tree_config(handoff="all", early_termination_threshold=-1.0)
    for episode in run_batch(run, Counting(2)):
        assert [(stop.path, stop.reason) for stop in episode.stops] == [((), "early_termination")]
        assert joint_samples([episode]) == 2


@pytest.mark.parametrize(
    ("method", "given", "line"),
    [
        ("first_prompts", "ab", "must return a list of prompts, not str"),
        ("first_prompts", ["Say."], "must return one entry per agent, 2, not 1"),
        ("outcome", 3.0, "must return an Outcome, not float"),
        ("outcome", Outcome(float("nan")), "must return a reward that is a finite number"),
        ("outcome", Outcome(1.0, rewards=(1.0,)), "must return no rewards or one per agent, 2"),
        ("outcome", Outcome(1.0, counts={"rollout/tokens": 1}), "must not use the count name 'rollout/tokens'"),
        ("probed", {"reward_mean": 1.0}, "must not use the metric name 'reward_mean'"),
        ("feedback", "sum: 3", "must return a list of strings, not str"),
        ("revisions", ["Again.", None], "must return a list of strings, but an entry is NoneType"),
    ],
)
def test_an_invalid_result_of_an_environment_is_named(method: str, given: Any, line: str) -> None:
    wrong = type("Wrong", (Counting,), {method: lambda *_: given})
    with pytest.raises((TypeError, ValueError)) as caught:
        run_batch(tree_config(handoff="all"), wrong(2)) if method != "probed" else run_batch(probing(), wrong(2))
    assert str(caught.value).startswith(f"{wrong.__module__}:Wrong.{method} {line}")


class Short(Sum):
    """An attempt without an answer of the second agent."""

    @property
    def answers(self) -> list[str]:
        return ["3"]


def test_invalid_answers_of_an_attempt_are_named() -> None:
    class Wrong(Counting):
        def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Sum:
            return Short(responses, last)

    with pytest.raises(ValueError, match=f"{__name__}:Short.answers must return one entry per agent, 2, not 1"):
        run_batch(tree_config(), Wrong(2))


def probing() -> Config:
    base = {"num_agents": 2, "num_turns": 1, "num_generations": 2, "max_new_tokens": 8}
    tree = {"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, "magrpo": base}
    return from_tree(tree | {"output": {"probe_helpers": "always"}}, "magrpo")
