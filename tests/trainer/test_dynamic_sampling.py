"""Batches of informative draws, under any order of events and any luck."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.trainer.dynamic_sampling import Assignment, DynamicSampler
from marl_ray.trainer.scheduling import SchedulingGate


def batches_of(informative: list[bool], size: int, most: int, first: int, total: int) -> list[list[int]]:
    """What each batch has to be, from the definition: each a run of draws behind the one before."""
    found, draw = [], first
    for _ in range(total):
        batch: list[int] = []
        while sum(informative[d] for d in batch) < size and len(batch) < most:
            batch.append(draw)
            draw += 1
        found.append(batch)
    return found


@settings(max_examples=300, deadline=None)
@given(
    size=st.integers(1, 5),
    extra=st.integers(0, 6),
    agents=st.integers(1, 3),
    staleness=st.integers(0, 3),
    total=st.integers(1, 6),
    done=st.integers(0, 4),
    first_draw=st.integers(0, 5),
    share=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
    evaluated=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_batches_are_those_of_the_definition_never_too_stale_never_stuck(
    size: int,
    extra: int,
    agents: int,
    staleness: int,
    total: int,
    done: int,
    first_draw: int,
    share: float,
    evaluated: bool,
    seed: int,
) -> None:
    """`done` batches were done before, as after --resume. Draws end, and agents learn, in any order."""
    rng = random.Random(seed)
    last = done + total
    luck = [rng.random() < share for _ in range(first_draw + total * (size + extra))]
    evaluations = {rng.randint(done, last)} if evaluated else set[int]()
    gate = SchedulingGate(agents, staleness, done, last, evaluations)
    draws = DynamicSampler(size, size + extra, done, first_draw, last)
    begun: set[int] = set()
    oldest: dict[int, int] = {}
    """The oldest version that a draw may have tokens of."""
    batches: dict[int, list[Assignment]] = {}
    most_in_play = 0
    while True:
        moves: list[tuple[str, int]] = [("end", draw) for draw in begun]
        if draws.may_start(gate.open_until):
            moves.append(("start", 0))
        if gate.in_log < draws.batch:
            moves.append(("log", gate.in_log))
        moves += [("learn", agent) for agent in range(agents) if gate.may_update(agent)]
        if gate.evaluation is not None:
            moves.append(("evaluate", gate.evaluation))
        if not moves:
            break
        what, which = rng.choice(moves)
        if what == "start":
            while gate.started <= draws.latest_batch:
                gate.start()
            begun.add(draws.next)
            oldest[draws.start()] = min(gate.versions)
            most_in_play = max(most_in_play, len(begun))
        elif what == "end":
            begun.remove(which)
            for placed in draws.played(which, luck[which]):
                batches.setdefault(placed.batch, []).append(placed)
                assert placed.informative == luck[placed.draw]
                assert oldest[placed.draw] <= max(gate.versions) <= placed.batch <= oldest[placed.draw] + staleness
        elif what == "log":
            gate.logged(which)
        elif what == "learn":
            gate.published(which, gate.versions[which] + 1)
        else:
            gate.evaluated(which)
    assert gate.versions == [last] * agents, "everybody has learned from everything"
    expected = batches_of(luck, size, size + extra, first_draw, total)
    assert [[placed.draw for placed in batches[batch]] for batch in range(done, last)] == expected
    assert all(placed.last == (placed is of[-1]) for of in batches.values() for placed in of)
    assert not begun
    assert draws.next == expected[-1][-1] + 1, "nothing was played in vain"
    assert most_in_play <= (staleness + 1) * size


def test_one_that_teaches_nothing_is_replaced_at_once() -> None:
    draws = DynamicSampler(size=2, most=4, batch=0, draw=10, total=1)
    assert [draws.start(), draws.start(), draws.may_start(0)] == [10, 11, False]
    assert draws.played(11, informative=False) == [], "draw 10 comes before it"
    assert draws.may_start(0)
    assert draws.start() == 12
    assert not draws.may_start(0)
    assert draws.played(10, informative=True) == [Assignment(10, 0, True, False), Assignment(11, 0, False, False)]
    assert draws.played(12, informative=True) == [Assignment(12, 0, True, True)]
    assert (draws.batch, draws.may_start(9)) == (1, False), "there is no further batch"


def test_the_bound_ends_a_batch() -> None:
    draws = DynamicSampler(size=2, most=3, batch=5, draw=0, total=7)
    for draw in range(3):
        assert draws.may_start(5)
        draws.start()
        (placed,) = draws.played(draw, informative=False)
        assert placed == Assignment(draw, 5, False, last=draw == 2)
    assert (draws.batch, draws.may_start(5), draws.may_start(6)) == (6, False, True)


def test_the_bound_is_counted_on_before_it_is_reached() -> None:
    """Two of three draws are used up: whatever the third is, the one behind it is in the next batch."""
    draws = DynamicSampler(size=2, most=3, batch=0, draw=0, total=2)
    for draw in range(2):
        draws.start()
        draws.played(draw, informative=False)
    draws.start()
    assert (draws.latest_batch, draws.may_start(0)) == (1, False)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be found among 2"):
        DynamicSampler(size=3, most=2, batch=0, draw=0, total=1)
    draws = DynamicSampler(size=1, most=1, batch=0, draw=4, total=2)
    for draw in (3, 4):
        with pytest.raises(ValueError, match=f"draw {draw} is not in play"):
            draws.played(draw, informative=True)
