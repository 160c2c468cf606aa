"""Composition chat: each turn continues the agent's conversation, on the branch of the expanded joint action."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from marl_ray.core.chat import Prompt
from marl_ray.core.episode import Completion, Episode, Generation, SamplingSpec, Task
from marl_ray.core.errors import UserError
from marl_ray.credit.groups import ordered_by_turn
from marl_ray.learning.micro_batches import MicroBatcher, trainable_rows
from marl_ray.rollout.turn_player import TurnPlayer
from tests.credit.whole_batches import build_agent_batch
from tests.environments.talk import Talk
from tests.factories import make_config
from tests.rollout.helpers import NoExecutor

TASK = Task("t", "Go.", {})


class Relay(Talk):
    """Speakers that answer one after another."""

    def order(self, task: Task) -> list[list[int]]:
        return [[1], [0]]


class Speaker:
    """A generator that continues conversations with ids that no other request has."""

    def __init__(self) -> None:
        self.ids = count(1)
        self.requests: list[tuple[Prompt, tuple[int, ...]]] = []

    async def generate(
        self, prompt: Prompt, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation:
        self.requests.append((prompt, history))
        prompt_ids = (*history, next(self.ids), next(self.ids))
        return Generation(prompt_ids, tuple(self.completion() for _ in range(sampling.num_generations)))

    def completion(self) -> Completion:
        ids = tuple(next(self.ids) for _ in range(3))
        return Completion(ids, "x" * next(self.ids), (-1.0,) * 3, "stop", ((0, 3),))


def chat_config(**settings: Any) -> Any:
    external = {"mode": "passed", "composition": "chat"}
    return make_config(sections={"external": external}, **({"num_turns": 3, "num_generations": 2} | settings))


def run_episode(environment: Any, **settings: Any) -> tuple[Episode, list[Speaker], Any]:
    config, speakers = chat_config(**settings), [Speaker(), Speaker()]
    runner = TurnPlayer(config, environment, speakers, NoExecutor())
    return asyncio.run(runner.run_episode(TASK, 2, "train", 0)), speakers, config


@pytest.mark.parametrize("environment", [Talk(2), Relay(2)], ids=["parallel", "in rounds"])
@pytest.mark.parametrize("handoff", ["random", "best", "all"])
def test_a_prompt_is_the_conversation_of_the_expanded_joint_action(environment: Any, handoff: str) -> None:
    if handoff == "all" and isinstance(environment, Relay):
        pytest.skip("handoff all needs agents that answer at the same time")
    episode, _, _ = run_episode(environment, handoff=handoff)
    links = 0
    for _, node in episode.nodes():
        for index, child in node.children.items():
            for answer in node.answers(node.joint_actions[index]):
                conversation = answer.conversation
                assert conversation[-3:] == answer.completion.token_ids
                for prompt_ids in {call.prompt_ids for call in child.calls[answer.agent]}:
                    assert prompt_ids[: len(conversation)] == conversation
                    assert len(prompt_ids) == len(conversation) + 2
                    links += 1
    assert links >= 4


def test_the_next_message_has_feedback_and_instruction_only() -> None:
    episode, (first, _), _ = run_episode(Talk(2))
    (start, nothing), (message, history) = first.requests[:2]
    assert (start, nothing) == (Talk(2).first_prompts(TASK)[0], ())
    assert history
    assert episode.root is not None
    (child,) = episode.root.children.values()
    assert child.prompts[0] == message
    assert isinstance(message, str)
    assert message.startswith("Feedback:\n")
    assert "previous answer" not in message


@pytest.mark.parametrize("handoff", ["best", "all"])
def test_every_sampled_token_is_trained_once(handoff: str) -> None:
    episode, _, config = run_episode(Talk(2), handoff=handoff, max_new_tokens=8)
    assert not ordered_by_turn(config.training, config.external)
    for agent in range(2):
        (mini_batch,) = build_agent_batch([episode], agent, 0, config).mini_batches
        batcher = MicroBatcher(10_000, "packed")
        micro_batches = [*batcher.add(trainable_rows(mini_batch.groups)), *batcher.flush()]
        trained = [int(token) for micro_batch in micro_batches for token in micro_batch.tokens]
        nodes = [node for _, node in episode.nodes()]
        sampled = [token for node in nodes for call in node.calls[agent] for token in call.completion.token_ids]
        assert sorted(trained) == sorted(sampled)
        assert micro_batches[0].groups is not None
        rows = sum(len(micro_batch.groups.groups) for micro_batch in micro_batches if micro_batch.groups)
        assert rows == (4 if handoff == "all" else 1), "a row per leaf of the tree, one for a chain"


def test_a_repeated_first_prompt_is_rejected() -> None:
    with pytest.raises(UserError, match=r"external\.original_prompt repeats the first prompt"):
        make_config(sections={"external": {"composition": "chat", "original_prompt": True}})
