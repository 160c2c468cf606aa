"""Estimators that replace completions, on whole trees: the expected gradient over every possible tree is exact.

Two agents answer 0 or 1 in two turns. In turn 2 they know the joint answer of turn 1. Episodes are played by the real
player with handoff `all` and `num_generations: [2, 1]`, once for each of the 256 combinations of sampled answers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from marl_ray.config import Config
from marl_ray.core.episode import Completion, Generation, Node, Outcome, SamplingSpec, Task
from marl_ray.core.errors import UserError
from marl_ray.credit.groups import build_group
from marl_ray.rollout.turn_player import TurnPlayer
from tests.factories import make_config
from tests.rollout.counting import Counting
from tests.rollout.helpers import NoExecutor

FIRST = {("0", "0"): 1.0, ("0", "1"): -2.0, ("1", "0"): 0.5, ("1", "1"): 3.0}
SECOND = {("0", "0"): 2.0, ("0", "1"): -1.0, ("1", "0"): 0.0, ("1", "1"): 5.0}
SECOND |= {("", ""): 0.25, ("", "0"): 1.0, ("", "1"): -0.5, ("0", ""): 0.75, ("1", ""): 1.5}
DISCOUNT = 0.5
Joint = tuple[str, ...]
Gradient = defaultdict[tuple[int, Joint | None], float]
"""Derivatives in the logit of answer 1, by agent and context."""


class TwoTurns(Counting):
    """The game: the reward of a turn is a table of the joint answers, in which "" is no answer."""

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Any:
        return Answers(responses, last)

    def outcome(self, attempt: Any, report: Any) -> Outcome:
        table = SECOND if attempt.last else FIRST
        return Outcome(table[tuple(attempt.answers)])


class Answers:
    """An attempt."""

    program = None

    def __init__(self, answers: Sequence[str], last: bool) -> None:
        self.answers = list(answers)
        self.last = last


class Script:
    """A generator that gives the scripted answers of one agent, in order."""

    def __init__(self, answers: Sequence[str]) -> None:
        self.answers = iter(answers)

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        texts = itertools.islice(self.answers, sampling.num_generations)
        return Generation((1,), tuple(Completion((2,), text, (-1.0,), "stop", ((0, 1),)) for text in texts))


def probability(agent: int, context: Joint | None, answer: str) -> float:
    """Return the probability of an answer: in turn 1 of no context, in turn 2 after a joint answer."""
    one = 0.3 + 0.2 * agent
    if context is not None:
        one = 0.2 + 0.3 * int(context[0]) + 0.2 * int(context[1]) + 0.1 * agent
    return one if answer == "1" else 1 - one


def slope(agent: int, context: Joint | None, answer: str) -> float:
    """Return the derivative of the log-probability in the logit of answer 1."""
    return float(answer == "1") - probability(agent, context, "1")


def tree_config(estimator: str) -> Config:
    return make_config(
        num_agents=2,
        num_turns=2,
        handoff="all",
        num_generations=[2, 1],
        estimator=estimator,
        discount=DISCOUNT,
        max_new_tokens=8,
    )


def trees(config: Config) -> Iterator[tuple[float, Node]]:
    """Yield every tree of one task with its probability."""

    async def play(scripts: Sequence[Sequence[str]]) -> Node:
        player = TurnPlayer(config, TwoTurns(2), [Script(script) for script in scripts], NoExecutor())
        root = (await player.run_episode(Task("t", "Play.", {}), config.training.group_sizes)).root
        assert root is not None
        return root

    async def play_all() -> list[Node]:
        by_agent = itertools.product("01", repeat=4)  # two answers in turn 1, then one after each of them
        return [await play(scripts) for scripts in itertools.product(by_agent, repeat=2)]

    for root in asyncio.run(play_all()):
        weight = 1.0
        for index, action in enumerate(root.joint_actions):
            first = root.texts(action)
            child = root.children[index]
            second = child.texts(child.joint_actions[0])
            for agent in range(2):
                weight *= probability(agent, None, first[agent]) * probability(agent, first, second[agent])
        yield weight, root


def expected_gradient(estimator: str) -> Gradient:
    """Return the expected gradient of one group in turn 1, and of the mean group of turn 2."""
    config = tree_config(estimator)
    found: Gradient = defaultdict(float)
    for weight, root in trees(config):
        nodes: list[tuple[Node, Joint | None, float]] = [(root, None, weight)]
        for index, child in root.children.items():
            nodes.append((child, root.texts(root.joint_actions[index]), weight / len(root.children)))
        for node, context, share in nodes:
            for agent in range(2):
                group = build_group(node, agent, config)
                for call, credit in zip(group.calls, group.weights, strict=True):
                    found[agent, context] += share * credit * slope(agent, context, call.completion.text)
    return found


def exact_gradient(later: Callable[[int, Joint], float]) -> Gradient:
    """Return the gradient of E[r1 + discount r2] in turn 1, and of E[later(agent, joint answer)] in turn 2."""
    found: Gradient = defaultdict(float)
    joint = list(itertools.product("01", repeat=2))
    for first, second in itertools.product(joint, repeat=2):
        chance = 1.0
        for agent in range(2):
            chance *= probability(agent, None, first[agent]) * probability(agent, first, second[agent])
        for agent in range(2):
            value = FIRST[first] + DISCOUNT * SECOND[second]
            found[agent, None] += chance * value * slope(agent, None, first[agent])
            found[agent, first] += chance * later(agent, second) * slope(agent, first, second[agent])
    return found


def reward(agent: int, answers: Joint) -> float:
    """Return the reward of turn 2."""
    return SECOND[answers]


def joining(agent: int, answers: Joint) -> float:
    """Return the mean reward of turn 2 once the agent has joined, over both orders: Shapley's value, less a part that
    does not depend on the agent's answer."""
    alone = ("", answers[1]) if agent == 1 else (answers[0], "")
    return (SECOND[answers] + SECOND[alone]) / 2


def nothing(agent: int, answers: Joint) -> float:
    """Return 0, for estimators that learn nothing from one answer."""
    return 0.0


@pytest.mark.parametrize(
    ("estimator", "later"),
    [("magrpo", nothing), ("difference", reward), ("shapley", joining)],
    ids=["magrpo", "difference", "shapley"],
)
def test_the_expected_gradient_of_all_trees_is_exact(estimator: str, later: Callable[[int, Joint], float]) -> None:
    found = expected_gradient(estimator)
    exact = exact_gradient(later)
    assert len(exact) == 2 * (1 + 4)
    for (agent, context), value in exact.items():
        scale = 0.5 if context is None else 1.0  # 1 - 1 / G: the mean of two siblings contains the answer itself
        assert found[agent, context] == pytest.approx(scale * value, abs=1e-12), (agent, context)


def test_only_the_last_turn_of_a_tree_executes_replaced_completions() -> None:
    for estimator, executed in (("difference", {0, 1}), ("shapley", {0, 1})):
        _, root = next(trees(tree_config(estimator)))
        assert root.counterfactuals == {}
        assert all(child.counterfactuals.keys() == executed for child in root.children.values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": "difference", "num_generations": [1, 1]}, "has one completion there: raise it"),
        ({"estimator": "centred_difference", "num_generations": [4, 1]}, "use magrpo.estimator difference"),
        ({"estimator": "difference", "num_generations": [4, 1], "counterfactual": "siblings"}, "needs siblings"),
        ({"estimator": "difference", "num_generations": [4, 1], "normalize_advantages": True}, "set it to false"),
    ],
)
def test_groups_without_siblings_are_refused_where_they_would_learn_nothing(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_config(**{"num_agents": 2, "num_turns": 2, "handoff": "all", **settings})


@pytest.mark.parametrize("estimator", ["difference", "centred_difference", "shapley"])
def test_groups_in_all_turns_are_accepted(estimator: str) -> None:
    make_config(num_agents=2, num_turns=3, handoff="all", num_generations=[4, 2, 2], estimator=estimator)
