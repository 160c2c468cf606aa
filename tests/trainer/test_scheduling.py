"""The gate's decisions under any order of events."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.trainer.scheduling import SchedulingGate


class World:
    """Batches in play, learners and evaluations, each of which may be done at any moment the gate allows."""

    def __init__(self, gate: SchedulingGate, agents: int, first: int) -> None:
        self.gate = gate
        self.learning = [first] * agents
        """The version each agent's next update makes is one more."""
        self.playing: dict[int, list[tuple[int, ...]]] = {}
        """Versions that were served while a batch was played."""
        self.played: dict[int, list[tuple[int, ...]]] = {}
        self.trained: list[list[int]] = [[] for _ in range(agents)]
        self.evaluated: list[int] = []

    def moves(self) -> list[tuple[str, int]]:
        gate = self.gate
        found = [("play", batch) for batch in self.playing] + [("done", batch) for batch in self.playing]
        found += [("log", batch) for batch in self.played if batch == gate.in_log]
        found += [("learn", agent) for agent in range(len(self.learning)) if gate.may_update(agent)]
        if gate.next_batch is not None:
            found.append(("start", gate.next_batch))
        if gate.evaluation is not None:
            found.append(("evaluate", gate.evaluation))
        return found

    def do(self, what: str, which: int) -> None:
        gate = self.gate
        if what == "start":
            assert gate.start() == which
            self.playing[which] = [tuple(gate.versions)]
        elif what == "play":
            self.playing[which].append(tuple(gate.versions))
        elif what == "done":
            self.played[which] = [*self.playing.pop(which), tuple(gate.versions)]
        elif what == "log":
            gate.logged(which)
            for versions in self.played.pop(which):
                assert all(0 <= which - version <= gate.staleness for version in versions)
        elif what == "learn":
            self.trained[which].append(gate.versions[which])
            gate.published(which, gate.versions[which] + 1)
        else:
            assert set(gate.versions) == {which}, "played with exactly this version of everyone"
            gate.evaluated(which)
            self.evaluated.append(which)


@settings(max_examples=300, deadline=None)
@given(
    agents=st.integers(1, 4),
    staleness=st.integers(0, 3),
    total=st.integers(1, 9),
    first=st.integers(0, 3),
    ahead=st.integers(0, 3),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_every_batch_once_and_in_order_never_too_stale_never_stuck(
    agents: int, staleness: int, total: int, first: int, ahead: int, seed: int, data: st.DataObject
) -> None:
    first = min(first, total)
    logged = min(first + ahead, total)
    due = data.draw(st.sets(st.integers(first, total)))
    gate = SchedulingGate(agents, staleness, first, total, due, logged)
    world, rng = World(gate, agents, first), random.Random(seed)
    for _ in range(100 * total * agents + 100):
        moves = [move for move in world.moves() if move[0] != "play" or rng.random() < 0.2]
        if not world.moves():
            break
        if moves:
            world.do(*rng.choice(moves))
    assert world.trained == [list(range(first, total))] * agents
    assert world.evaluated == sorted(due)
    assert not world.playing
    assert not world.played


def test_bound_0_is_lockstep() -> None:
    gate = SchedulingGate(agents=2, staleness=0, first=0, total=2)
    assert gate.start() == 0
    assert gate.next_batch is None
    assert not gate.may_update(0), "its batch is not in the log"
    gate.logged(0)
    gate.published(0, 1)
    assert gate.next_batch is None, "the other agent is at version 0"
    gate.published(1, 1)
    assert gate.next_batch == 1


def test_an_evaluation_holds_back_updates_and_the_gate() -> None:
    gate = SchedulingGate(agents=1, staleness=1, first=0, total=4, evaluations=[1])
    assert [gate.start(), gate.start(), gate.next_batch] == [0, 1, None]
    gate.logged(0)
    gate.logged(1)
    gate.published(0, 1)
    assert (gate.evaluation, gate.may_update(0), gate.next_batch) == (1, False, None)
    gate.evaluated(1)
    assert (gate.evaluation, gate.may_update(0), gate.next_batch) == (None, True, 2)


def test_what_cannot_be_is_refused() -> None:
    gate = SchedulingGate(agents=1, staleness=0, first=0, total=3, evaluations=[2])
    with pytest.raises(ValueError, match="batch 0 is in the log"):
        gate.logged(0)
    with pytest.raises(ValueError, match="published version 1 after 0"):
        gate.published(0, 1)
    gate.start()
    with pytest.raises(ValueError, match="batch 1 may not start"):
        gate.start()
    with pytest.raises(ValueError, match="evaluation at step 2 was not due"):
        gate.evaluated(2)
    gate.logged(0)
    with pytest.raises(ValueError, match="published version 2 after 0"):
        gate.published(0, 2)
