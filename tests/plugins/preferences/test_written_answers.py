"""Joint answers in a file: their tokens, and the lines that are rejected."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marl_ray.config import Config
from marl_ray.core.batch import Group
from marl_ray.core.errors import UserError
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.models.names import resolve_model
from marl_ray.models.tokenization import encode_answer, load_tokenizer
from marl_ray.plugins.preferences.written_answers import AnswersFile
from marl_ray.telemetry.episode_records import episode_record
from tests.environments.talk import Talk
from tests.factories import make_episode, make_node, quickstart_config

MODEL = "bundled:toy-base"
AUX, MAIN = "def aux(x):\n    return x", "def f(x):\n    return aux(x)"


class Relay(Talk):
    """Speaker 1 reads the answer of speaker 0."""

    def order(self, task: Any) -> list[list[int]]:
        return [[0], [1]]


Read = Callable[..., list[list[Group]]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(*rows: Any, config: Config | None = None, rewards: bool = False) -> list[list[Group]]:
        path = tmp_path / "answers.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        groups, has_rewards = AnswersFile(path, config or quickstart_config(), {MODEL: False}).groups()
        assert has_rewards == rewards
        return groups

    return read


def texts(group: Group) -> tuple[str, str]:
    """Return prompt and answer of a group, decoded."""
    tokenizer = load_tokenizer(resolve_model(MODEL), quickstart_config().model)
    return tokenizer.decode(group.prompt_ids), tokenizer.decode(group.completions[0].token_ids)


def test_answers_to_a_task_follow_the_first_prompts_and_end_with_eos(read: Read) -> None:
    first, second = read({"task_id": "toy/000", "completions": [AUX, MAIN]})
    config = quickstart_config()
    task = next(task for task in load_tasks("bundled:toy", "train") if task.id == "toy/000")
    prompts = ENVIRONMENTS.get("code_generation").from_config(config).first_prompts(task)
    end = load_tokenizer(resolve_model(MODEL), config.model).eos_token
    assert [texts(first[0]), texts(second[0])] == [(prompts[0], AUX + end), (prompts[1], MAIN + end)]
    assert first[0].returns == (1.0,)


def test_prompts_may_be_given_and_get_the_system_prompt_of_the_agent(read: Read) -> None:
    config = quickstart_config(**{"agents": [{"system_prompt": "Be short."}, {}]})
    first, second = read({"prompts": "Question", "completions": ["A", "B"], "reward": 2}, config=config, rewards=True)
    assert texts(first[0])[0] == "Be short.\n\nQuestion"
    assert texts(second[0])[0] == "Question"
    assert first[0].returns == (2.0,)
    assert texts(read({"prompts": ["Q0", "Q1"], "completions": ["A", "B"]})[1][0])[0] == "Q1"


def test_an_agent_with_an_order_reads_the_given_earlier_answers(read: Read) -> None:
    environment = f"{Relay.__module__}:Relay"
    config = quickstart_config(environment=environment)
    first, second = read({"task_id": "toy/000", "completions": ["one", "two"]}, config=config)
    assert "has answered" not in texts(first[0])[0]
    assert texts(second[0])[0].startswith("speaker 0 has answered:\none\n\n")


def test_answers_end_with_the_first_stop_text() -> None:
    tokenizer = load_tokenizer(resolve_model(MODEL), quickstart_config().model)
    assert tokenizer.decode(encode_answer(tokenizer, "one", ("\n", "."))) == "one\n"


def test_episodes_give_the_joint_answers_of_all_turns(read: Read) -> None:
    record = episode_record(make_episode(make_node(0, [0.0, 1.0], {1: make_node(1, [2.0])})))
    first, second = read(record, rewards=True)
    assert [group.returns for group in first] == [(0.0,), (1.0,), (2.0,)]
    assert [texts(group)[0] for group in second] == ["prompt 0.1", "prompt 0.1", "prompt 1.1"]
    assert texts(second[2])[1].startswith("answer 1.1.0")
    conversation = quickstart_config(**{"external.composition": "chat"})
    assert [group.returns for group in read(record, config=conversation, rewards=True)[0]] == [(0.0,), (1.0,)]


def test_episodes_of_evaluations_are_left_out(read: Read) -> None:
    node = {
        "turn": 1,
        "prompts": ["P", "Q"],
        "responses": [["A"], ["B"]],
        "joint_actions": [{"indices": [0, 0], "reward": 1.0}],
    }
    rows = [{"step": 1, "kind": kind, "task": kind, "nodes": [node]} for kind in ("train", "eval")]
    assert [len(of_agent) for of_agent in read(*rows, rewards=True)] == [1, 1]
    with pytest.raises(UserError, match="has no answer that can be trained on"):
        read(rows[1])


def test_answers_that_cannot_be_sampled_are_left_out(read: Read, caplog: pytest.LogCaptureFixture) -> None:
    long = "x = 1\n" * 100
    with caplog.at_level(logging.WARNING):
        groups = read({"prompts": "Q", "completions": ["A", long]}, {"prompts": "Q", "completions": ["A", "B"]})
    assert [len(of_agent) for of_agent in groups] == [2, 1]
    assert "1 answer left out: longer than magrpo.max_new_tokens (48)" in caplog.text
    with pytest.raises(UserError, match=r"all answers of agent 1 are too long: raise magrpo.max_new_tokens"):
        read({"prompts": "Q", "completions": ["A", long]})
    with pytest.raises(UserError, match=r"all answers of agent 0 are too long: raise model.max_length \(1024\)"):
        read({"prompts": "x = 1\n" * 600, "completions": ["A", "B"]})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"task_id": "toy/000", "completion": []}, "line 1: unknown key 'completion': did you mean completions?"),
        ({"task_id": "toy/000"}, "line 1: completions should be a list of one text per agent"),
        ({"task_id": "toy/000", "completions": ["a"]}, "line 1: 1 completion for 2 agents"),
        ({"task_id": "toy/x", "completions": ["a", "b"]}, "bundled:toy 'train' has no task 'toy/x'"),
        ({"completions": ["a", "b"]}, "line 1: give either prompts or a task_id"),
        ({"task_id": "t", "prompts": "p", "completions": ["a", "b"]}, "give either prompts or a task_id"),
        ({"prompts": ["p"], "completions": ["a", "b"]}, "prompts should be one text, or a list of one prompt per"),
        ({"prompts": ["p", 3], "completions": ["a", "b"]}, "a prompt should be a text, or chat messages"),
        ({"prompts": "p", "completions": ["a", "b"], "reward": "4"}, "reward should be a number, not '4'"),
        ({"nodes": [{"turn": 1}]}, r"line 1: not an episode of this config \(KeyError\)"),
        ({"nodes": [{"turn": 1, "prompts": ["p"]}]}, "an episode of 1 agent, and the config has 2"),
    ],
)
def test_a_wrong_line_is_an_error_of_one_line(row: Any, message: str, read: Read) -> None:
    with pytest.raises(UserError, match=message) as error:
        read(row)
    assert "\n" not in str(error.value)


def test_rewards_are_given_for_all_answers_or_for_none(read: Read) -> None:
    line = {"prompts": "p", "completions": ["a", "b"]}
    with pytest.raises(UserError, match="with and without reward"):
        read(line, {**line, "reward": 1.0})
    with pytest.raises(UserError, match="has no answer"):
        read()
