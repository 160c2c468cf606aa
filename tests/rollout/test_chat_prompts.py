"""Environments that return chat messages, and the settings of single agents that shape their prompts and sampling.

Environment and generators are small and run no code; runner, transition and records are real.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from marl_ray.core.chat import Prompt
from marl_ray.core.episode import Episode, Generation, SamplingSpec, Task
from marl_ray.core.errors import UserError
from marl_ray.results.run_summary import episode_text
from marl_ray.rollout.turn_player import TurnPlayer
from marl_ray.telemetry.episode_records import episode_record
from marl_ray.testing import check_environment
from tests.environments.talk import Talk
from tests.factories import make_completion, make_config
from tests.rollout.helpers import NoExecutor

TASK = Task("t", "Go.", {})


class Chat(Talk):
    """Speakers whose first prompt has a system message and an example."""

    def first_prompts(self, task: Task) -> list[Prompt]:
        example = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hi."}]
        return [
            [{"role": "system", "content": f"You are {role}."}, *example, {"role": "user", "content": task.prompt}]
            for role in self.roles(task)
        ]


class Recorder:
    """A generator that keeps its prompts and sampling parameters."""

    def __init__(self) -> None:
        self.prompts, self.specs = list[Prompt](), list[SamplingSpec]()

    async def generate(self, prompt: Prompt, sampling: SamplingSpec, priority: int = 0) -> Generation:
        self.prompts.append(prompt)
        self.specs.append(sampling)
        return Generation((1,), tuple(make_completion(f"answer {g}") for g in range(sampling.num_generations)))


def run_episode(environment: Any, sections: dict[str, Any], evaluate: bool = False) -> tuple[Episode, list[Recorder]]:
    config = make_config(sections={"external": {"mode": "plain"}} | sections, num_turns=2, num_generations=2)
    recorders = [Recorder(), Recorder()]
    runner = TurnPlayer(config, environment, recorders, NoExecutor())
    work = runner.evaluate_task(TASK, 1) if evaluate else runner.run_episode(TASK, 2, "train", 0)
    return asyncio.run(work), recorders


def test_messages_reach_the_generators_and_the_records() -> None:
    episode, (first, second) = run_episode(Chat(2), {})
    assert [message["role"] for message in first.prompts[0]] == ["system", "user", "assistant", "user"]
    roles = Chat(2).roles(TASK)
    later = second.prompts[1]
    assert later[0] == {"role": "system", "content": f"You are {roles[1]}."}, "system messages are kept"
    assert [message["role"] for message in later] == ["system", "user"]
    assert "Your previous answer:" in later[1]["content"]
    assert json.loads(json.dumps(episode_record(episode)))["nodes"][0]["prompts"] == [
        first.prompts[0],
        second.prompts[0],
    ]
    assert "[system]" in episode_text(episode)


def test_the_original_prompt_keeps_all_messages() -> None:
    _, (first, _) = run_episode(Chat(2), {"external": {"mode": "plain", "original_prompt": True}})
    *kept, last = first.prompts[1]
    assert kept == first.prompts[0][:-1]
    assert last["content"].startswith("Go.\n\nYour previous answer:")


@pytest.mark.parametrize("evaluate", [False, True])
def test_settings_of_single_agents_apply_in_training_and_evaluation(evaluate: bool) -> None:
    agents = [
        {"system_prompt": "Be brief.", "stop": ["END"], "chat_template_kwargs": {"enable_thinking": False}},
        {"min_new_tokens": 3},
    ]
    sections = {"agents": agents, "model": {"name": "m", "stop": ["STOP"]}}
    episode, (first, second) = run_episode(Talk(2), sections, evaluate)
    assert [prompt[0]["content"] for prompt in first.prompts] == ["Be brief."] * 2
    assert all(isinstance(prompt, str) for prompt in second.prompts)
    spec = first.specs[0]
    assert (spec.stop, spec.template_kwargs, spec.min_new_tokens) == (("END",), {"enable_thinking": False}, 0)
    spec = second.specs[0]
    assert (spec.stop, spec.template_kwargs, spec.min_new_tokens) == (("STOP",), {}, 3)
    assert episode.root is not None
    assert isinstance(episode.root.prompts[0], str), "records show the environment's prompt"


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([], "must return texts or lists of messages with role and content"),
        ([{"role": "user"}], "must return texts or lists of messages with role and content"),
        ([{"role": "narrator", "content": "x"}], "one of the roles system, user, assistant"),
        ([{"role": "assistant", "content": "x"}], "must return messages that end with the agent's input"),
    ],
)
def test_invalid_messages_are_rejected_with_the_method(prompt: Any, says: str) -> None:
    class Invalid(Talk):
        def first_prompts(self, task: Task) -> list[Any]:
            return [prompt] * 2

    with pytest.raises((TypeError, ValueError), match=says):
        run_episode(Invalid(2), {})
    with pytest.raises(AssertionError, match=says):
        check_environment(Invalid(2), [TASK], [["a", "b"]])


def test_an_environment_of_messages_passes_the_contract_check() -> None:
    check_environment(Chat(2), [TASK], [["a", "b"]])


@pytest.mark.parametrize(
    ("model", "section", "says"),
    [
        ({"stop": [""]}, {}, "model.stop has an empty text"),
        ({}, {"min_new_tokens": 300}, "magrpo.min_new_tokens is 300, more than magrpo.max_new_tokens 256"),
        ({"chat_template_kwargs": {"tokenize": True}}, {}, "model.chat_template_kwargs has 'tokenize'"),
    ],
)
def test_settings_that_cannot_work_are_rejected(model: dict[str, Any], section: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make_config(sections={"model": {"name": "m"} | model}, **section)


def test_min_new_tokens_counts_as_a_truncated_sampler() -> None:
    assert make_config().importance == "none"
    assert make_config(min_new_tokens=3).importance == "truncate"
