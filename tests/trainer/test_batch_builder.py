"""Batches put together from nodes in any order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.config import Config
from marl_ray.core.batch import Group
from marl_ray.core.concurrency import Condition
from marl_ray.core.episode import Episode
from marl_ray.core.ids import PolicyId
from marl_ray.credit.groups import build_agent_batch, merge_batches
from marl_ray.trainer.batch_builder import BatchBuilder, PolicyStream, builder_from_log
from tests.credit.trees import episode, random_tree, tree_config


def run_of(agents: int, depth: int, handoff: str, size: int | None, **section: object) -> Config:
    return tree_config(agents, depth, 2, handoff=handoff, train_batch_size=size, **section)


async def stream_all(stream: PolicyStream) -> list[Group]:
    """What a learner does with it."""
    found: list[Group] = []
    while groups := await stream.groups(len(found)):
        found += groups
    return found


@settings(max_examples=150, deadline=None)
@given(
    agents=st.integers(1, 3),
    depth=st.integers(1, 3),
    draws=st.integers(1, 4),
    handoff=st.sampled_from(["random", "all"]),
    size=st.sampled_from([None, 1, 2, 3]),
    seed=st.integers(0, 2**32),
)
def test_the_order_of_arrival_changes_nothing(
    agents: int, depth: int, draws: int, handoff: str, size: int | None, seed: int
) -> None:
    run, rng = run_of(agents, depth, handoff, size), random.Random(seed)
    episodes = [episode(random_tree(rng.randint(1, depth), 2, agents, "aligned", handoff, rng)) for _ in range(draws)]
    if rng.random() < 0.3:
        episodes[rng.randrange(draws)] = Episode(episodes[0].task)  # lost before its first node
    waiting = [[node for _, node in e.nodes()] for e in episodes]
    assembly = BatchBuilder(5, draws, run)
    open_draws, handed_on = list(range(draws)), [0]
    while open_draws:
        draw = rng.choice(open_draws)
        if waiting[draw]:
            assembly.add_node(draw, waiting[draw].pop(0))
        else:
            assembly.add_episode(draw, episodes[draw])
            open_draws.remove(draw)
        handed_on.append(len(assembly.groups[0]))
    assert handed_on == sorted(handed_on)
    assert assembly.batches == [build_agent_batch(episodes, agent, 5, run) for agent in range(agents)]


def streamed(assembly: BatchBuilder, agent: int) -> Sequence[Group]:
    stream = PolicyStream(assembly, PolicyId((agent,)), Condition().until, lambda agent: True)
    return asyncio.run(asyncio.wait_for(stream_all(stream), 5))


@pytest.mark.parametrize("size", [None, 1, 2])
def test_a_stream_is_the_first_mini_batch(size: int | None) -> None:
    run, rng = run_of(2, 2, "random", size), random.Random(1)
    episodes = [episode(random_tree(2, 2, 2, "aligned", "random", rng)) for _ in range(3)]
    assembly = BatchBuilder(0, 3, run)
    for draw, one in enumerate(episodes):
        assembly.add_episode(draw, one)
    for agent in (0, 1):
        assert tuple(streamed(assembly, agent)) == assembly.batches[agent].mini_batches[0].groups
        assert streamed(builder_from_log(0, assembly.batches, run), agent) == streamed(assembly, agent)


@pytest.mark.parametrize("size", [None, 1, 2])
@pytest.mark.parametrize("aggregation", ["sequence_sum", "token_mean"])
def test_a_shared_policy_gets_the_groups_of_all_its_agents(size: int | None, aggregation: str) -> None:
    """Node by node, in as many mini-batches as one agent has; streamed, whole and from the log the same."""
    run, rng = run_of(3, 2, "random", size, loss_aggregation=aggregation), random.Random(1)
    episodes = [episode(random_tree(2, 2, 3, "aligned", "random", rng)) for _ in range(3)]
    assembly = BatchBuilder(0, 3, run)
    for draw, one in enumerate(episodes):
        assembly.add_episode(draw, one)
    first, other = assembly.batches[0], assembly.batches[2]
    whole = merge_batches([first, other])
    assert len(whole.mini_batches) == len(first.mini_batches)
    for ours, one, two in zip(whole.mini_batches, first.mini_batches, other.mini_batches, strict=True):
        assert ours.groups[0::2] == one.groups
        assert ours.groups[1::2] == two.groups
        assert ours.normalizer == one.normalizer + two.normalizer
    for source in (assembly, builder_from_log(0, assembly.batches, run)):
        stream = PolicyStream(source, PolicyId((0, 2)), Condition().until, lambda agent: True)
        assert tuple(asyncio.run(asyncio.wait_for(stream_all(stream), 5))) == whole.mini_batches[0].groups
        assert asyncio.run(asyncio.wait_for(stream.batch(), 5)) == whole
    assert merge_batches([first]) == first


@pytest.mark.parametrize("size", [None, 2])
def test_where_a_critic_compares_a_batch_it_comes_as_a_whole(size: int | None) -> None:
    run, rng = run_of(2, 2, "all", size, critic="iac", normalize_advantages=True), random.Random(1)
    episodes = [episode(random_tree(2, 2, 2, "aligned", "all", rng)) for _ in range(3)]
    assembly = BatchBuilder(0, 3, run)
    for draw, one in enumerate(episodes):
        assembly.add_episode(draw, one)
    for source in (assembly, builder_from_log(0, assembly.batches, run)):
        assert streamed(source, 1) == []
        stream = PolicyStream(source, PolicyId((1,)), Condition().until, lambda agent: True)
        assert asyncio.run(asyncio.wait_for(stream.batch(), 5)) == build_agent_batch(episodes, 1, 0, run)


def test_first_turns_are_handed_on_while_later_ones_are_played() -> None:
    run, rng = run_of(1, 2, "random", None), random.Random(2)
    episodes = [episode(random_tree(2, 2, 1, "aligned", "random", rng)) for _ in range(2)]
    (first, _), (second, last) = ([node for _, node in e.nodes()] for e in episodes)
    condition = Condition()
    assembly = BatchBuilder(0, 2, run, condition.notify_all)

    async def scenario() -> list[int]:
        stream = PolicyStream(assembly, PolicyId((0,)), condition.wait_for, lambda agent: True)
        seen = []
        assembly.add_node(1, second)
        early = asyncio.ensure_future(stream.groups(0))
        await asyncio.sleep(0)
        assert not early.done(), "draw 0 comes before draw 1"
        assembly.add_node(0, first)
        seen.append(len(await early))
        assembly.add_node(1, last)
        more = asyncio.ensure_future(stream.groups(2))
        await asyncio.sleep(0)
        assert not more.done()
        for draw in (0, 1):
            assembly.add_episode(draw, episodes[draw])
        seen.append(len(await more))
        return seen

    assert asyncio.run(scenario()) == [2, 2]


@pytest.mark.parametrize("handoff", ["random", "all"])
@pytest.mark.parametrize("size", [None, 2])
def test_how_many_draws_there_are_may_come_to_light_at_last(handoff: str, size: int | None) -> None:
    """With dynamic sampling: in their order, which is the groups', and whatever their numbers are."""
    run, rng = tree_config(2, 2, 2, handoff=handoff, train_batch_size=size, dynamic_sampling=True), random.Random(3)
    episodes = [episode(random_tree(2, 2, 2, "aligned", handoff, rng)) for _ in range(3)]
    assembly = BatchBuilder(4, None, run)
    for draw, one in zip((7, 8, 12), episodes, strict=True):
        before = len(assembly.groups[0])
        assembly.add_episode(draw, one)
        assert len(assembly.groups[0]) == before + len(list(one.nodes())), "learners need not wait for the next"
        assert assembly.batches == []
    assembly.close()
    assert assembly.batches == [build_agent_batch(episodes, agent, 4, run) for agent in (0, 1)]
    assert [group.turn for group in assembly.groups[0][:2]] == [0, 1]


def test_nothing_may_be_in_a_batch() -> None:
    assembly = BatchBuilder(4, None, tree_config(2, 1, 2, dynamic_sampling=True))
    assembly.close()
    assert [batch.mini_batches for batch in assembly.batches] == [(), ()]
