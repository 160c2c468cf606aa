"""A turn of an environment whose agents answer in an order, played as a program: its prompts, removals and replays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from marl_ray.config import Config
from marl_ray.core.chat import as_messages
from marl_ray.core.episode import Node, Task
from marl_ray.data.loading import load_tasks
from marl_ray.models.tokenization import encode_prompt, load_tokenizer
from marl_ray.plugins.plan_path.environment import PlanPath
from marl_ray.toy import BASE_PATH
from tests.plugins.gateway.scripted_agents import CONTEXT, ScriptedAgent, gateway_config, play, root

TASKS = load_tasks("python:marl_ray.plugins.plan_path.generate:SMALL_PATHS", "train[:2]", "plan_path")
SIBLINGS = 3
PLANNER, CHECKER = 0, 1


class SkipsTheChecker(PlanPath):
    """An environment whose order leaves an agent out."""

    def order(self, task: Task) -> list[list[int]]:
        return [[PLANNER]]


def moves(prompt: str, seed: int) -> str:
    """Return four moves, which depend on the prompt and the seed."""
    number = (len(prompt) + sum(map(ord, prompt)) + seed) % 256
    plan = ""
    for _ in range(4):
        number, move = divmod(number, 4)
        plan += "UDLR"[move]
    return plan


def config_of(estimator: str = "magrpo", **gateway: Any) -> Config:
    settings = {"roles": ["planner", "checker"], "reward": "judge", "judge": "plan_path"} | gateway
    sections = {"agents": [{"estimator": estimator}, {"estimator": estimator}]}
    config = gateway_config(sections=sections, **settings)
    return replace(config, training=replace(config.training, num_generations=SIBLINGS))


def agents() -> list[ScriptedAgent]:
    return [ScriptedAgent(str(BASE_PATH), moves) for _ in range(2)]


def played(config: Config, *tasks: Task) -> list[Node]:
    episodes = asyncio.run(play(config, agents(), *tasks))
    return [root(episode) for episode in episodes]


def test_agents_read_the_prompts_of_the_environment() -> None:
    environment = PlanPath(2)
    tokenizer = load_tokenizer(str(BASE_PATH), config_of().model)
    for task, node in zip(TASKS, played(config_of(), *TASKS), strict=True):
        assert len(node.joint_actions) == SIBLINGS
        for action in node.joint_actions:
            planned, checked = node.answers(action)
            first_prompts = environment.first_prompts(task)
            later = environment.prompt_after(task, CHECKER, first_prompts[CHECKER], {PLANNER: planned.completion.text})
            assert planned.prompt == as_messages(first_prompts[PLANNER])
            assert checked.prompt == as_messages(later)
            assert list(planned.prompt_ids) == encode_prompt(tokenizer, first_prompts[PLANNER], False)
            assert list(checked.prompt_ids) == encode_prompt(tokenizer, later, False)


def test_the_reward_is_that_of_the_environment() -> None:
    environment = PlanPath(2)
    (node,) = played(config_of(), TASKS[0])
    for action in node.joint_actions:
        texts = [call.completion.text for call in node.answers(action)]
        outcome = environment.outcome(environment.attempt(TASKS[0], texts, True), None)
        assert action.reward == outcome.reward
        assert action.rewards == outcome.rewards


def test_without_an_agent_the_later_agents_answer_again() -> None:
    environment = PlanPath(2)
    task = TASKS[0]
    (node,) = played(config_of("difference"), task)
    prompt = environment.first_prompts(task)[CHECKER]
    checker_without_plan = environment.prompt_after(task, CHECKER, prompt, {PLANNER: ""})
    for number, action in enumerate(node.joint_actions):
        planned, _ = node.answers(action)
        without_checker = environment.attempt(task, [planned.completion.text, ""], True)
        expected = environment.outcome(without_checker, None).rewards[CHECKER]
        assert node.counterfactuals[CHECKER][number] == expected
    # The checker has another prompt, so its answer is sampled from the answers to that prompt.
    possible = set()
    for seed in range(256):
        attempt = environment.attempt(task, ["", moves(checker_without_plan, seed)], True)
        possible.add(environment.outcome(attempt, None).rewards[PLANNER])
    assert len(possible) > 1
    assert set(node.counterfactuals[PLANNER]) <= possible


def test_branch_replays_of_an_ordered_turn() -> None:
    for node in played(config_of(credit="calls"), *TASKS):
        assert len(node.joint_actions) == 1 + 2 * (SIBLINGS - 1)
        assert sorted(replay.agent for replay in node.replays) == [PLANNER, CHECKER]
        for replay in node.replays:
            calls = [node.calls[replay.agent][index] for index in replay.calls]
            assert len({call.prompt_ids for call in calls}) == 1
            assert len(calls) == SIBLINGS


def test_a_prompt_that_is_too_long_loses_the_episode() -> None:
    task = replace(TASKS[0], prompt="U " * CONTEXT)
    (episode,) = asyncio.run(play(config_of(), agents(), task))
    assert episode.root is None
    assert "context" in episode.stops[0].detail


def test_an_order_without_an_agent_ends_the_run() -> None:
    judge = f"{__name__}:{SkipsTheChecker.__name__}"
    with pytest.raises(ValueError, match="contain each agent"):
        played(config_of(judge=judge), TASKS[0])
