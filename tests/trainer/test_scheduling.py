"""The decisions of the scheduling gate under any order of events."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.trainer.batch_scheduling import SchedulingGate


class World:
    """Rollouts, learners and evaluations, each of which may finish at any moment that the gate permits."""

    def __init__(self, gate: SchedulingGate, agents: int, first: int) -> None:
        self.gate = gate
        self.learning = [first] * agents
        self.running: dict[int, list[tuple[int, ...]]] = {}
        """Versions that were served while a batch was rolled out."""
        self.finished: dict[int, list[tuple[int, ...]]] = {}
        self.trained: list[list[int]] = [[] for _ in range(agents)]
        self.evaluated: list[int] = []

    def moves(self) -> list[tuple[str, int]]:
        gate = self.gate
        moves = [("sample", batch) for batch in self.running] + [("done", batch) for batch in self.running]
        moves += [("log", batch) for batch in self.finished if batch == gate.in_log]
        moves += [("learn", agent) for agent in range(len(self.learning)) if gate.may_update(agent)]
        if gate.next_batch is not None:
            moves.append(("start", gate.next_batch))
        if gate.evaluation is not None:
            moves.append(("evaluate", gate.evaluation))
        return moves

    def do(self, what: str, which: int) -> None:
        gate = self.gate
        if what == "start":
            assert gate.start() == which
            self.running[which] = [tuple(gate.versions)]
        elif what == "sample":
            self.running[which].append(tuple(gate.versions))
        elif what == "done":
            self.finished[which] = [*self.running.pop(which), tuple(gate.versions)]
        elif what == "log":
            gate.logged(which)
            for versions in self.finished.pop(which):
                assert all(0 <= which - version <= gate.staleness for version in versions)
        elif what == "learn":
            self.trained[which].append(gate.versions[which])
            gate.weights_updated(which, gate.versions[which] + 1)
        else:
            assert set(gate.versions) == {which}, "evaluated with exactly this version of every agent"
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
def test_every_batch_is_learned_once_in_order_and_within_the_bound(
    agents: int, staleness: int, total: int, first: int, ahead: int, seed: int, data: st.DataObject
) -> None:
    first = min(first, total)
    logged = min(first + ahead, total)
    due = data.draw(st.sets(st.integers(first, total)))
    gate = SchedulingGate(agents, staleness, first, total, due, logged)
    world, rng = World(gate, agents, first), random.Random(seed)
    for _ in range(100 * total * agents + 100):
        moves = [move for move in world.moves() if move[0] != "sample" or rng.random() < 0.2]
        if not world.moves():
            break
        if moves:
            world.do(*rng.choice(moves))
    assert world.trained == [list(range(first, total))] * agents
    assert world.evaluated == sorted(due)
    assert not world.running
    assert not world.finished


def test_with_bound_0_all_agents_are_in_step() -> None:
    gate = SchedulingGate(agents=2, staleness=0, first=0, total=2)
    assert gate.start() == 0
    assert gate.next_batch is None
    assert not gate.may_update(0), "its batch is not in the log"
    gate.logged(0)
    gate.weights_updated(0, 1)
    assert gate.next_batch is None, "the other agent is at version 0"
    gate.weights_updated(1, 1)
    assert gate.next_batch == 1


def test_an_evaluation_holds_back_updates_and_the_gate() -> None:
    gate = SchedulingGate(agents=1, staleness=1, first=0, total=4, evaluations=[1])
    assert [gate.start(), gate.start(), gate.next_batch] == [0, 1, None]
    gate.logged(0)
    gate.logged(1)
    gate.weights_updated(0, 1)
    assert (gate.evaluation, gate.may_update(0), gate.next_batch) == (1, False, None)
    gate.evaluated(1)
    assert (gate.evaluation, gate.may_update(0), gate.next_batch) == (None, True, 2)


def test_events_that_are_not_due_are_refused() -> None:
    gate = SchedulingGate(agents=1, staleness=0, first=0, total=3, evaluations=[2])
    with pytest.raises(ValueError, match="batch 0 was logged instead of batch 0"):
        gate.logged(0)
    with pytest.raises(ValueError, match="cannot go from version 0 to 1 now"):
        gate.weights_updated(0, 1)
    gate.start()
    with pytest.raises(ValueError, match="batch 1 may not start"):
        gate.start()
    with pytest.raises(ValueError, match="evaluation at step 2 was not due"):
        gate.evaluated(2)
    gate.logged(0)
    with pytest.raises(ValueError, match="cannot go from version 0 to 2 now"):
        gate.weights_updated(0, 2)
