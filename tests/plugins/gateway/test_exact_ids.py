"""The ids that are trained are the ids that were sampled: every token once, and a conversation in one row."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from marl_ray.core.batch import Batch, Group
from marl_ray.core.episode import AgentCall, Completion, Episode
from marl_ray.learning.micro_batches import MicroBatcher, trainable_rows
from marl_ray.learning.prompt_rows import PromptRow
from marl_ray.plugins.gateway.program_episode import ProgramEpisode
from marl_ray.storage.batch_log import BatchLog, LoggedStep
from tests.credit.whole_batches import build_agent_batch
from tests.plugins.gateway.scripted_agents import CHATML, TASK, ScriptedAgent, chat_model, gateway_config, play

HERE = "tests.plugins.gateway.test_exact_ids"
TRIMMING = CHATML.replace("{{ m.content }}", "{{ m.content | trim }}")


async def converses(episode: ProgramEpisode) -> float:
    """Ask the coder three times in one conversation, and the tester once about the last answer."""
    messages = [{"role": "user", "content": "one"}]
    for word in ("two", "three"):
        messages += [{"role": "assistant", "content": await episode.ask("coder", messages)}]
        messages += [{"role": "user", "content": word}]
    answer = await episode.ask("coder", messages)
    await episode.ask("tester", f"Test {answer}.")
    return float(episode.key[1][-1])


async def branches(episode: ProgramEpisode) -> float:
    """Ask twice at the same time, and continue one answer in two ways at the same time."""
    first, _ = await asyncio.gather(episode.ask("coder", "x"), episode.ask("coder", "y"))
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": first}]
    await asyncio.gather(*(episode.ask("coder", [*history, {"role": "user", "content": end}]) for end in "ab"))
    await episode.ask("coder", "x")
    return float(episode.key[1][-1])


async def edits(episode: ProgramEpisode) -> float:
    """Continue with an answer that the program has changed."""
    answer = await episode.ask("coder", "x")
    changed = [{"role": "user", "content": "x"}, {"role": "assistant", "content": answer.upper()}]
    await episode.ask("coder", [*changed, {"role": "user", "content": "y"}])
    return float(episode.key[1][-1])


def agents(model: str) -> list[ScriptedAgent]:
    return [ScriptedAgent(model, lambda text, seed: f"return {seed % 7} "), ScriptedAgent(model, lambda *_: "assert")]


def played(function: str, model: str) -> tuple[Episode, list[ScriptedAgent], Any]:
    config, own = gateway_config(model, function=f"{HERE}:{function}"), agents(model)
    (episode,) = asyncio.run(play(config, own))
    return episode, own, config


def rows_of_agent(batch: Batch) -> list[PromptRow]:
    """Return the rows of a batch as the learner joins them."""
    groups = [group for mini_batch in batch.mini_batches for group in mini_batch.groups]
    batcher = MicroBatcher(4096, "packed")
    assert batcher.add(trainable_rows(groups)) == []
    return batcher._pending


def trained_ids(rows: Iterable[PromptRow]) -> list[tuple[int, ...]]:
    return sorted(completion.token_ids for row in rows for completion in row.completions)


@pytest.fixture(params=["plain", "template"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    from marl_ray.toy import BASE_PATH

    return str(BASE_PATH) if request.param == "plain" else chat_model(tmp_path)


def test_a_conversation_is_one_row_and_every_sampled_token_is_trained_once(model: str) -> None:
    episode, (coder, tester), config = played("converses", model)
    assert episode.root is not None
    assert [[call.sibling for call in calls] for calls in episode.root.calls] == [[0, 0, 0, 1, 1, 1], [0, 1]]
    for agent, scripted in enumerate((coder, tester)):
        batch = build_agent_batch([episode], agent, 0, config)
        (group,) = batch.mini_batches[0].groups
        assert batch.mini_batches[0].normalizer == 1
        assert sorted(c.token_ids for c in group.completions) == sorted(scripted.sampled)
        rows = rows_of_agent(batch)
        weighted = [ids for ids, weight in zip(group.completions, group.weights, strict=True) if weight]
        assert trained_ids(rows) == sorted(c.token_ids for c in weighted)
    coder_rows = rows_of_agent(build_agent_batch([episode], 0, 0, config))
    assert [len(row.completions) for row in coder_rows] == [3, 3]
    for row in coder_rows:  # the prompt of the last call contains the earlier answers exactly as they were sampled
        for number, completion in enumerate(row.completions[:2]):
            assert row.contains(number)
            assert completion.token_ids in coder.sampled


def test_branches_of_a_conversation_share_its_beginning(model: str) -> None:
    episode, (coder, _), config = played("branches", model)
    batch = build_agent_batch([episode], 0, 0, config)
    rows = rows_of_agent(batch)
    assert trained_ids(rows) == sorted(coder.sampled)
    # Per episode: x with one continuation, and the other continuation. Of both episodes together: y, and x once more,
    # unless its answer happens to be the continued one.
    assert sorted(len(row.completions) for row in rows) in ([1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 2, 2, 2])


def test_calls_with_equal_prompts_are_one_row_unless_they_are_continued() -> None:
    ids = [((1, 2), (3,)), ((1, 2), (4,)), ((1, 2), (5,)), ((1, 2, 4, 6), (7,)), ((1, 2, 4, 6), (8,)), ((9,), (1,))]
    calls = []
    for number, (prompt, answer) in enumerate(ids):
        completion = Completion(answer, "", (0.0,), "stop", ())
        calls.append(AgentCall(0, "", prompt, completion, number + 1, (0, 1, 2, 1, 1, 2)[number]))
    weights = (1.0,) * len(calls)
    group = Group(0, tuple(calls), weights, weights)
    rows = [(row.prompt_ids, [one.token_ids for one in row.completions]) for row in trainable_rows([group])]
    assert rows == [
        ((1, 2), [(3,), (5,)]),
        ((1, 2), [(4,)]),
        ((1, 2, 4, 6), [(7,), (8,)]),
        ((9,), [(1,)]),
    ]


def test_the_order_of_concurrent_calls_changes_nothing(model: str) -> None:
    batches = [build_agent_batch([played("branches", model)[0]], 0, 0, gateway_config(model, function="a:b"))] * 2
    assert batches[0] == batches[1]
    prompts = [group.prompts for group in batches[0].mini_batches[0].groups]
    assert all(list(own[:5]) == sorted(own[:5]) for own in prompts)


def test_an_edited_answer_begins_a_new_row_and_is_not_counted(model: str) -> None:
    episode, _, config = played("edits", model)
    assert episode.root is not None
    assert episode.root.joint_actions[0].outcome.counts["gateway/rewritten"] == 0
    rows = rows_of_agent(build_agent_batch([episode], 0, 0, config))
    assert sum(len(row.completions) for row in rows) == 4
    assert not any(row.contains(number) for row in rows for number in range(len(row.completions)))


def test_an_answer_that_the_template_rewrites_begins_a_new_row_and_is_counted(tmp_path: Path) -> None:
    # The template trims the space at the end of each answer.
    episode, (coder, _), config = played("converses", chat_model(tmp_path, TRIMMING))
    assert episode.root is not None
    assert [action.outcome.counts["gateway/rewritten"] for action in episode.root.joint_actions] == [2, 2]
    rows = rows_of_agent(build_agent_batch([episode], 0, 0, config))
    assert not any(row.contains(number) for row in rows for number in range(len(row.completions)))
    assert set(trained_ids(rows)) <= set(coder.sampled)


def test_the_batch_log_keeps_prompts_and_siblings(tmp_path: Path, model: str) -> None:
    episode, _, config = played("branches", model)
    batches = tuple(build_agent_batch([episode], agent, 0, config) for agent in (0, 1))
    log = BatchLog(tmp_path)
    log.append(LoggedStep(0, batches, 2, {}, []))
    read = log.read(0, 2).batches
    for written, found in zip(batches, read, strict=True):
        for own, other in zip(groups_of(written), groups_of(found), strict=True):
            assert (own.siblings, own.prompts, own.weights) == (other.siblings, other.prompts, other.weights)
            assert [c.token_ids for c in own.completions] == [c.token_ids for c in other.completions]


def groups_of(batch: Batch) -> list[Group]:
    return [group for mini_batch in batch.mini_batches for group in mini_batch.groups]


def test_siblings_are_compared_and_not_their_calls() -> None:
    from marl_ray.toy import BASE_PATH

    episode, _, config = played("branches", str(BASE_PATH))  # rewards 0 and 1, five calls each
    (group,) = groups_of(build_agent_batch([episode], 0, 0, config))
    assert group.size == 2
    assert group.siblings == (0,) * 5 + (1,) * 5
    assert group.weights == (-0.25,) * 5 + (0.25,) * 5  # (R - 0.5) / G
    assert len(group.by_prompt()) == 10
    assert TASK.id == episode.task.id
