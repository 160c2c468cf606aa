"""Batches built from nodes that arrive in any order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.config import Config
from marl_ray.core.batch import Batch, Group, GroupQueue
from marl_ray.core.episode import Episode
from marl_ray.core.ids import PolicyId
from marl_ray.credit.groups import merge_batches
from marl_ray.trainer.batch_builder import BatchBuilder, policy_batch, put_logged_groups
from tests.credit.trees import episode, random_tree, tree_config
from tests.credit.whole_batches import build_agent_batch


def run_of(agents: int, depth: int, handoff: str, size: int | None, **section: object) -> Config:
    return tree_config(agents, depth, 2, handoff=handoff, train_batch_size=size, **section)


async def read_groups(queue: GroupQueue) -> list[Group]:
    """Read a queue as a learner does."""
    groups: list[Group] = []
    while new := await queue.get(len(groups)):
        groups += new
    return groups


def build(run: Config, episodes: Sequence[Episode], step: int = 0) -> tuple[BatchBuilder, dict[PolicyId, GroupQueue]]:
    """Return a builder with all episodes, and its queues, which are closed."""
    queues = {policy: GroupQueue(step) for policy in run.policies}
    builder = BatchBuilder(step, len(episodes), run, queues)
    for index, one in enumerate(episodes):
        builder.add_episode(index, one)
    for policy, queue in queues.items():
        queue.close(policy_batch(builder.batches, policy))
    return builder, queues


def logged_queue(run: Config, batches: Sequence[Batch], policy: PolicyId) -> GroupQueue:
    """Return the queue of a batch that was read from the log."""
    queue = GroupQueue(0)
    put_logged_groups(batches, {policy: queue}, run.training)
    queue.close(policy_batch(batches, policy))
    return queue


def read(queue: GroupQueue) -> list[Group]:
    return asyncio.run(asyncio.wait_for(read_groups(queue), 5))


@settings(max_examples=150, deadline=None)
@given(
    agents=st.integers(1, 3),
    depth=st.integers(1, 3),
    count=st.integers(1, 4),
    handoff=st.sampled_from(["random", "all"]),
    size=st.sampled_from([None, 1, 2, 3]),
    seed=st.integers(0, 2**32),
)
def test_the_order_of_arrival_changes_nothing(
    agents: int, depth: int, count: int, handoff: str, size: int | None, seed: int
) -> None:
    run, rng = run_of(agents, depth, handoff, size), random.Random(seed)
    episodes = [episode(random_tree(rng.randint(1, depth), 2, agents, "aligned", handoff, rng)) for _ in range(count)]
    if rng.random() < 0.3:
        episodes[rng.randrange(count)] = Episode(episodes[0].task)  # lost before its first node
    waiting = [[node for _, node in e.nodes()] for e in episodes]
    builder = BatchBuilder(5, count, run)
    unfinished, sizes = list(range(count)), [0]
    while unfinished:
        index = rng.choice(unfinished)
        if waiting[index]:
            builder.add_node(index, waiting[index].pop(0))
        else:
            builder.add_episode(index, episodes[index])
            unfinished.remove(index)
        sizes.append(len(builder.groups[0]))
    assert sizes == sorted(sizes)
    assert builder.batches == [build_agent_batch(episodes, agent, 5, run) for agent in range(agents)]


@pytest.mark.parametrize("size", [None, 1, 2])
def test_a_queue_delivers_the_first_mini_batch(size: int | None) -> None:
    run, rng = run_of(2, 2, "random", size), random.Random(1)
    builder, queues = build(run, [episode(random_tree(2, 2, 2, "aligned", "random", rng)) for _ in range(3)])
    for policy, queue in queues.items():
        groups = read(queue)
        assert tuple(groups) == builder.batches[policy.first_agent].mini_batches[0].groups
        assert read(logged_queue(run, builder.batches, policy)) == groups
        assert read(queue) == groups, "a learner that was lost reads the queue again from the start"


@pytest.mark.parametrize("size", [None, 1, 2])
@pytest.mark.parametrize("aggregation", ["sequence_sum", "token_mean"])
def test_a_shared_policy_gets_the_groups_of_all_its_agents(size: int | None, aggregation: str) -> None:
    # Node by node, in as many mini-batches as one agent has; from the rollout and from the log alike.
    run, rng = run_of(3, 2, "random", size, loss_aggregation=aggregation), random.Random(1)
    run, shared = replace(run, agents=(*run.agents[:2], replace(run.agents[2], policy=0))), PolicyId((0, 2))
    builder, queues = build(run, [episode(random_tree(2, 2, 3, "aligned", "random", rng)) for _ in range(3)])
    first, other = builder.batches[0], builder.batches[2]
    whole = merge_batches([first, other])
    assert len(whole.mini_batches) == len(first.mini_batches)
    for ours, one, two in zip(whole.mini_batches, first.mini_batches, other.mini_batches, strict=True):
        assert ours.groups[0::2] == one.groups
        assert ours.groups[1::2] == two.groups
        assert ours.normalizer == one.normalizer + two.normalizer
    for queue in (queues[shared], logged_queue(run, builder.batches, shared)):
        assert tuple(read(queue)) == whole.mini_batches[0].groups
        assert asyncio.run(asyncio.wait_for(queue.batch(), 5)) == whole
    assert merge_batches([first]) == first


@pytest.mark.parametrize("handoff", ["random", "all"])
def test_policies_that_learn_in_turns_have_empty_batches_in_other_steps(handoff: str) -> None:
    run, rng = run_of(3, 2, handoff, None, learn_in_turns=2), random.Random(1)
    run = replace(run, agents=(*run.agents[:2], replace(run.agents[2], policy=0)))
    episodes = [episode(random_tree(2, 2, 3, "aligned", handoff, rng)) for _ in range(2)]
    learned = []
    for step in range(6):
        builder, queues = build(run, episodes, step)
        assert builder.batches == [build_agent_batch(episodes, agent, step, run) for agent in range(3)]
        learned.append([agent for agent, batch in enumerate(builder.batches) if batch.mini_batches])
        assert [policy for policy, queue in queues.items() if read(queue)] == [
            policy for policy in run.policies if learned[-1] == list(policy.agents)
        ]
        assert all(batch.step == step for batch in builder.batches)
    assert learned == [[0, 2], [0, 2], [1], [1], [0, 2], [0, 2]]


@pytest.mark.parametrize("size", [None, 2])
def test_a_batch_that_a_critic_compares_as_a_whole_comes_as_a_whole(size: int | None) -> None:
    run, rng = run_of(2, 2, "all", size, critic="iac", normalize_advantages=True), random.Random(1)
    episodes = [episode(random_tree(2, 2, 2, "aligned", "all", rng)) for _ in range(3)]
    builder, queues = build(run, episodes)
    for queue in (queues[PolicyId((1,))], logged_queue(run, builder.batches, PolicyId((1,)))):
        assert read(queue) == []
        assert asyncio.run(asyncio.wait_for(queue.batch(), 5)) == build_agent_batch(episodes, 1, 0, run)


def test_groups_of_first_turns_arrive_while_later_turns_are_sampled() -> None:
    run, rng = run_of(1, 2, "random", None), random.Random(2)
    episodes = [episode(random_tree(2, 2, 1, "aligned", "random", rng)) for _ in range(2)]
    (first, _), (second, last) = ([node for _, node in e.nodes()] for e in episodes)
    queue = GroupQueue(0)
    builder = BatchBuilder(0, 2, run, {PolicyId((0,)): queue})

    async def scenario() -> list[int]:
        sizes = []
        builder.add_node(1, second)
        early = asyncio.ensure_future(queue.get(0))
        await asyncio.sleep(0)
        assert not early.done(), "episode 0 comes before episode 1"
        builder.add_node(0, first)
        sizes.append(len(await early))
        builder.add_node(1, last)
        more = asyncio.ensure_future(queue.get(2))
        await asyncio.sleep(0)
        assert not more.done()
        for index in (0, 1):
            builder.add_episode(index, episodes[index])
        sizes.append(len(await more))
        assert queue.most_waiting == 2
        end, whole = asyncio.ensure_future(queue.get(4)), asyncio.ensure_future(queue.batch())
        await asyncio.sleep(0)
        assert not end.done(), "the batch is not in the log yet"
        queue.close(builder.batches[0])
        assert (await end, await whole) == ([], builder.batches[0])
        return sizes

    assert asyncio.run(scenario()) == [2, 2]


@pytest.mark.parametrize("handoff", ["random", "all"])
@pytest.mark.parametrize("size", [None, 2])
def test_the_number_of_episodes_may_be_unknown_until_the_end(handoff: str, size: int | None) -> None:
    # With dynamic sampling episodes come in their order, which is the order of the groups, whatever their numbers.
    run, rng = tree_config(2, 2, 2, handoff=handoff, train_batch_size=size, dynamic_sampling=True), random.Random(3)
    episodes = [episode(random_tree(2, 2, 2, "aligned", handoff, rng)) for _ in range(3)]
    builder = BatchBuilder(4, None, run)
    for sample, one in zip((7, 8, 12), episodes, strict=True):
        before = len(builder.groups[0])
        builder.add_episode(sample, one)
        assert len(builder.groups[0]) == before + len(list(one.nodes())), "learners need not wait for the next episode"
        assert builder.batches == []
    builder.close()
    assert builder.batches == [build_agent_batch(episodes, agent, 4, run) for agent in (0, 1)]
    assert [group.turn for group in builder.groups[0][:2]] == [0, 1]


def test_a_batch_may_be_empty() -> None:
    builder = BatchBuilder(4, None, tree_config(2, 1, 2, dynamic_sampling=True))
    builder.close()
    assert [batch.mini_batches for batch in builder.batches] == [(), ()]
