"""Weight transfers over NCCL after the loss of a process in the middle of a broadcast: real processes, with gloo."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator

import pytest

from marl_ray.actors.engine_environment import engine_environment
from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.handle import Actor, ActorDied, Deadline, Handle, wait_all
from marl_ray.core.ids import ActorId, PolicyId
from tests.actors.gloo_transfer import SEND_WITHIN_S, Receiver, Sender, make_sender, send, use_gloo

pytestmark = pytest.mark.slow

SOON = Deadline(300.0, "start_s", "to start")
LOST = 3
"""Receivers that are lost one after another."""


def start(id: ActorId, actor_class: type[Actor], *arguments: object) -> Handle[Actor]:
    options = {"num_cpus": 0, "runtime_env": {"env_vars": engine_environment(1, False, True, False)}}
    return Handle.create(id, 1, actor_class, arguments, options)


@pytest.fixture(scope="module")
def receivers(local_ray: None) -> Iterator[list[Handle[GenerationActor]]]:
    ids = [ActorId("generator", PolicyId((0,)), replica) for replica in range(LOST + 1)]
    handles = [start(id, Receiver, id) for id in ids]
    with pytest.MonkeyPatch.context() as patch:
        use_gloo(patch)
        results = wait_all([handle.call(Receiver.start) for handle in handles], SOON)
        assert results == [[]] * len(handles)
        yield handles
    for handle in handles:
        handle.kill()


def test_receivers_serve_the_next_incarnation_after_their_sender_is_killed_in_a_broadcast(
    receivers: list[Handle[GenerationActor]],
) -> None:
    first = start(ActorId("learner", PolicyId((0,))), Sender)

    async def lose_sender() -> None:
        await first.call(Sender.start).within(SOON)
        with pytest.raises(ActorDied):
            await first.call(Sender.send, receivers, fatal=random.Random(3).randrange(1, 10)).within(SOON)

    asyncio.run(lose_sender())
    begin = time.monotonic()
    assert send(make_sender(), 1, receivers, 2).failed == {}
    assert time.monotonic() - begin < SEND_WITHIN_S / 2


def test_an_error_of_one_receiver_ends_the_broadcast_of_all_others(receivers: list[Handle[GenerationActor]]) -> None:
    asyncio.run(receivers[1].call(Receiver.fail_in, 2).within(SOON))
    begin = time.monotonic()
    assert send(make_sender(), 1, receivers, 2).failed == {}, "repeated with all receivers"
    assert time.monotonic() - begin < SEND_WITHIN_S / 2, "long before the deadline"


def test_receivers_killed_in_a_broadcast_are_left_out_of_its_repetition(
    receivers: list[Handle[GenerationActor]],
) -> None:
    weight_sender, chance = make_sender(), random.Random(7)
    tensors = len(weight_sender.source.shapes)
    for version in range(LOST):
        lost = chance.choice(receivers)
        tensor = chance.randrange(tensors)
        asyncio.run(lost.call(Receiver.die_at, tensor).within(SOON))
        begin = time.monotonic()
        result = send(weight_sender, version, receivers, 2)  # raises if an acknowledged checksum differs
        assert list(result.failed) == [lost.id], tensor
        assert time.monotonic() - begin < SEND_WITHIN_S / 2, "long before the deadline"
        receivers.remove(lost)
    session = weight_sender._session
    assert send(weight_sender, LOST, receivers, 2).failed == {}
    assert weight_sender._session is session, "without a loss the session goes on"
