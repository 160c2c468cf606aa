"""RewardEnvironment: prompts and a function are a complete environment."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import numpy as np
import pytest

from marl_ray.config import from_tree
from marl_ray.core.episode import Outcome, bounded_outcome
from marl_ray.core.errors import UserError
from marl_ray.data.prompts import PROMPTS
from marl_ray.environments.chat_rows import copied
from marl_ray.environments.reward import fingerprint_of_rows, prompt_task, rows_of
from marl_ray.testing import check_dataset, check_environment
from tests.environments.reward_builders import BY_AGENT, environment, outcomes, tasks_of


def test_it_keeps_the_contract_of_environments() -> None:
    prompts = ["Say a word.", ["Help.", "Answer."], BY_AGENT, {"prompt": "Add.", "total": 3}]
    env = environment(lambda prompt, answers: [len(answers[0]), len(answers[1])], prompts=prompts)
    tasks = tasks_of(env)
    check_environment(env, tasks, [["a", "b"]], execute=lambda attempts: asyncio.run(env.execute(attempts, None)))  # type: ignore[arg-type]
    check_dataset(PROMPTS, env.splits["train"])
    assert [env.first_prompts(task) for task in tasks[:3]] == [["Say a word."] * 2, *[["Help.", "Answer."]] * 2]
    assert [task.id for task in tasks] == ["prompt/0", "prompt/1", "prompt/2", "prompt/3"]
    assert hash(tasks[2].fields["row"]) == hash(prompt_task({"prompt": BY_AGENT}, 7).fields["row"])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, Outcome(2.0)),
        (True, Outcome(1.0)),
        (np.float32(0.5), Outcome(0.5)),
        ([1, 0], Outcome(0.5, rewards=(1.0, 0.0))),
        (np.array([1.0, 0.0]), Outcome(0.5, rewards=(1.0, 0.0))),
        ({"main": 0, "helper": 1}, Outcome(0.5, rewards=(1.0, 0.0))),
        ({"right": 1, "short": 0.5}, Outcome(1.5, {"right": 1.0, "short": 0.5})),
    ],
    ids=str,
)
def test_a_reward_is_a_number_numbers_or_levels(value: Any, expected: Outcome) -> None:
    assert outcomes(environment(lambda prompt, answers: value), ["a", "b"]) == [expected]


@pytest.mark.parametrize("value", ["1", float("nan"), [1.0], [1, 2, 3], {"right": None}, object], ids=str)
def test_another_value_is_a_failed_call_shown_once_with_function_prompt_and_row(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    row = {"prompt": "Say a word.", "total": 3}
    found = outcomes(environment(lambda prompt, answers: value, prompts=[row]), ["a", "b"], ["c", "d"])
    message = (
        r"<lambda> should return a finite number, 2 numbers .*, got .* for prompt 'Say a word\.', row {'total': 3}"
    )
    for outcome in found:
        assert outcome.unscored == "error"
        assert re.search(message, outcome.failure)
    (record,) = caplog.records
    assert re.search(message, record.getMessage())


def test_none_is_no_reward() -> None:
    scored, unscored = outcomes(environment(lambda prompt, answers: 1 if answers[0] else None), ["a", ""], ["", ""])
    assert scored == Outcome(1.0)
    assert (unscored.unscored, unscored.failure[-13:]) == ("none", "returned None")


def test_levels_keep_their_names() -> None:
    env = environment(lambda prompt, answers: {answers[0]: 1.0})
    first, second = outcomes(env, ["a", ""], ["b", ""])
    assert first.levels == {"a": 1.0}
    assert re.search(r"the same levels for every answer, got \['b'\], and before \['a'\]", second.failure)


def test_further_parameters_are_columns() -> None:
    def reward(prompt: str, answers: list[str], total: int, bonus: float = 0.5, **others: Any) -> float:
        return total + bonus + len(others)

    row = {"prompt": "Add.", "total": 3, "names": ["x"]}
    assert outcomes(environment(reward, prompts=[row]), ["a", "b"]) == [Outcome(3 + 0.5 + 1)]
    assert outcomes(environment(reward, prompts=[row | {"bonus": 1}]), ["a", "b"]) == [Outcome(3 + 1 + 1)]

    def optional(prompt: str, answers: list[str], solution: str | None = None) -> float:
        return float(solution == "6")

    assert outcomes(environment(optional, prompts=[{"prompt": "2 * 3?", "solution": "6"}]), ["a", "b"]) == [
        Outcome(1.0)
    ]
    with pytest.raises(UserError, match="reward takes total, which prompt/0 does not have, only prompt, sum"):
        outcomes(environment(reward, prompts=[{"prompt": "Add.", "sum": 3}]), ["a", "b"])


@pytest.mark.parametrize("column", ["prompts", "answers"])
def test_a_column_with_the_name_of_a_reserved_parameter_is_refused(column: str) -> None:
    env = environment(lambda prompts, answers, **columns: 1.0, prompts=[{"prompt": "a", column: "b"}])
    with pytest.raises(UserError, match=f"prompt/0 has a column {column}, and the parameter {column} of .*: rename"):
        env.check_task(tasks_of(env)[0])


def test_a_function_that_changes_its_arguments_changes_nothing_else() -> None:
    def reward(prompt: Any, answers: list[str], tests: list[Any]) -> float:
        prompt[0]["content"] += "!"
        tests[0].append(answers.pop())
        return float(len(tests[0]))

    messages = [{"role": "user", "content": "Say a word."}]
    env = environment(reward, prompts=[{"prompt": messages, "tests": [[]]}])
    assert outcomes(env, ["a", "b"], ["a", "b"]) == [Outcome(1.0)] * 2
    assert env.first_prompts(tasks_of(env)[0]) == [messages] * 2
    assert messages == [{"role": "user", "content": "Say a word."}]


def test_messages_in_an_array_are_copied_too() -> None:
    messages = np.empty(1, object)
    messages[0] = {"role": "user", "content": "Say a word."}
    given = copied(messages)
    given[0]["content"] = "changed"
    assert messages[0]["content"] == "Say a word."


@pytest.mark.parametrize("number", [10**400, 10**5000, -(10**5000)], ids=["401 digits", "5001 digits", "negative"])
def test_an_integer_that_is_no_float_is_a_failed_call(number: int) -> None:
    for reward in (number, {"level": number}, [number, 1]):
        (outcome,) = outcomes(environment(lambda prompt, answers, reward=reward: reward), ["a", "b"])
        assert outcome.unscored == "error", reward
    assert bounded_outcome(Outcome(number)).failure.endswith("is beyond 1e+06")


def test_feedback_is_the_reward_or_a_function() -> None:
    plain = environment(lambda prompt, answers: {"right": 1, "short": 0.5})
    task = tasks_of(plain)[0]
    attempt, outcome = plain.attempt(task, ["a", "b"], last=False), Outcome(1.5, {"right": 1.0, "short": 0.5})
    assert plain.feedback(attempt, outcome, "level_feedback", 0) == ["reward: 1.5", "right: 1", "short: 0.5"]
    for given in (["no", "yes\nbut"], {"main": "yes\nbut", "helper": "no"}):
        own = environment(feedback=lambda prompt, answers, given=given: given)
        assert [own.feedback(attempt, outcome, "", agent) for agent in (0, 1)] == [["no"], ["yes", "but"]]
    with pytest.raises(UserError, match="should return one text, or one per agent, got 3"):
        environment(feedback=lambda prompt, answers: 3).feedback(attempt, outcome, "", 0)
    with pytest.raises(UserError, match=r"the function .*<lambda> raised ZeroDivisionError"):
        environment(feedback=lambda prompt, answers: 1 / 0).feedback(attempt, outcome, "", 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agents": "helper"}, "agents should be a list of names"),
        ({"agents": 2}, r"agents should be a list of names like \['helper', 'main'\], got 2"),
        ({"agents": ["a", "a"]}, "agents should be distinct names"),
        ({"prompts": "Say a word."}, "prompts should be a list of prompts or a data set"),
        ({"prompts": []}, "prompts is an empty list"),
        ({"reward": 1.0}, r"should be functions of \(prompt, answers\)"),
        ({"reward": lambda answers: 1.0}, r"should take two parameters, \(prompt, answers\)"),
        ({"feedback": "good"}, r"should be functions of \(prompt, answers\)"),
    ],
)
def test_mistakes_are_found_before_a_run(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        environment(**settings)


def test_prompts_fit_the_agents() -> None:
    with pytest.raises(UserError, match=r"prompt/0 should be one text .*, or one per agent \(helper, main\)"):
        outcomes(environment(prompts=[["a", "b", "c"]]), ["a", "b"])
    with pytest.raises(
        UserError, match=r"task prompt/0 has no column prompt; its columns: question\. Rename the column"
    ):
        prompt_task({"question": "?"}, 0)
    tree = {"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, "magrpo": {"num_agents": 3}}
    with pytest.raises(UserError, match=r"has 2 agents \(helper, main\), and the run has 3: set magrpo.num_agents"):
        environment().from_config(from_tree(tree, "magrpo"))


def test_chat_messages_are_prompts() -> None:
    shared = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Say a word."}]
    own = [{"role": "user", "content": "Help."}]
    seen: list[Any] = []

    def reward(prompt: Any, answers: list[str]) -> float:
        seen.append(prompt)
        return 1.0

    prompts = [shared, [own, "Answer."], {"main": "Answer.", "helper": own}, {"prompt": shared, "total": 3}]
    env = environment(reward, prompts=prompts)
    tasks = tasks_of(env)
    check_environment(env, tasks, [["a", "b"]], execute=lambda attempts: asyncio.run(env.execute(attempts, None)))  # type: ignore[arg-type]
    assert [env.first_prompts(task) for task in tasks] == [
        [shared, shared],
        [own, "Answer."],
        [own, "Answer."],
        [shared, shared],
    ]
    assert [task.prompt for task in tasks[:3]] == ["Be short.\n\nSay a word.", "Help.\nAnswer.", "Answer.\nHelp."]
    assert outcomes(env, ["a", "b"]) == [Outcome(1.0)]
    assert seen[-1] == shared, "the reward function receives the prompt as given"


def test_chat_messages_as_data_sets_store_them_are_plain_messages() -> None:
    unused = {"name": None, "tool_calls": None, "images": []}
    parts = [{"type": "text", "text": "Say ", "image": None}, {"type": "text", "text": "a word."}]
    stored = [
        {"role": "developer", "content": "Be short.", **unused},
        {"role": "user", "content": np.array(parts, dtype=object), **unused},
    ]
    plain = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Say a word."}]
    env = environment(prompts=[stored, np.array(stored, dtype=object), [stored, "Answer."]])
    tasks = tasks_of(env)
    assert [env.first_prompts(task) for task in tasks] == [[plain, plain], [plain, plain], [plain, "Answer."]]
    assert tasks[0].prompt == "Be short.\n\nSay a word."
    assert outcomes(env, ["a", "b"]) == [Outcome(1.0)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "user"}, "message 1 has no content that is a text"),
        ({"role": "assistant", "content": "a"}, "the last message has the role assistant, not user"),
        ({"role": "user", "content": 3}, "message 1 has no content that is a text"),
        ({"role": "critic", "content": "a"}, "message 1 has the role 'critic', not one of system"),
        ({"role": "user", "content": "a", "name": "Eve"}, "message 1 has the key name, which a prompt cannot have"),
        ({"role": "user", "content": [{"type": "image", "url": "x"}]}, "message 1 has a part .* that is no text"),
    ],
    ids=str,
)
def test_malformed_chat_messages_are_rejected(message: Any, reason: str) -> None:
    start = r"prompt/0 should be one text or list of chat messages \(role and content"
    for prompt in ([message], [[message], "Answer."]):
        with pytest.raises(UserError, match=f"{start}.*: {reason}"):
            outcomes(environment(prompts=[prompt]), ["a", "b"])


def test_data_sets_of_the_library_are_prompts() -> None:
    datasets = pytest.importorskip("datasets")
    rows = rows_of(datasets.Dataset.from_list([{"prompt": "a", "total": 1}, {"prompt": "b", "total": 2}]))
    assert rows == [{"prompt": "a", "total": 1}, {"prompt": "b", "total": 2}]
    assert fingerprint_of_rows({"train": rows}) != fingerprint_of_rows({"train": rows[:1]})
    messages = [{"role": "user", "content": "Say a word."}]
    env = environment(prompts=datasets.Dataset.from_list([{"prompt": messages, "total": 1}]))
    assert env.first_prompts(tasks_of(env)[0]) == [messages, messages]
