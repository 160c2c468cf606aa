"""Dynamic sampling under any order of events and any rewards."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.trainer.batch_scheduling import Assignment, DynamicSampler, SchedulingGate


def batches_of(informative: list[bool], size: int, limit: int, first: int, total: int) -> list[list[int]]:
    """Return the samples of each batch by definition: consecutive samples behind the previous batch."""
    batches, sample = [], first
    for _ in range(total):
        batch: list[int] = []
        while sum(informative[s] for s in batch) < size and len(batch) < limit:
            batch.append(sample)
            sample += 1
        batches.append(batch)
    return batches


@settings(max_examples=300, deadline=None)
@given(
    size=st.integers(1, 5),
    extra=st.integers(0, 6),
    agents=st.integers(1, 3),
    staleness=st.integers(0, 3),
    total=st.integers(1, 6),
    done=st.integers(0, 4),
    first_sample=st.integers(0, 5),
    share=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
    evaluated=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_batches_match_the_definition_and_the_bound_without_deadlock(
    size: int,
    extra: int,
    agents: int,
    staleness: int,
    total: int,
    done: int,
    first_sample: int,
    share: float,
    evaluated: bool,
    seed: int,
) -> None:
    # `done` batches were done before, as after --resume. Episodes end, and agents learn, in any order.
    rng = random.Random(seed)
    last = done + total
    informative = [rng.random() < share for _ in range(first_sample + total * (size + extra))]
    evaluations = {rng.randint(done, last)} if evaluated else set[int]()
    gate = SchedulingGate(agents, staleness, done, last, evaluations)
    sampler = DynamicSampler(size, size + extra, done, first_sample, last)
    running: set[int] = set()
    oldest: dict[int, int] = {}
    """The oldest version that may have sampled tokens of an episode."""
    batches: dict[int, list[Assignment]] = {}
    max_running = 0
    while True:
        moves: list[tuple[str, int]] = [("end", sample) for sample in running]
        if sampler.may_start(gate.open_until):
            moves.append(("start", 0))
        if gate.in_log < sampler.batch:
            moves.append(("log", gate.in_log))
        moves += [("learn", agent) for agent in range(agents) if gate.may_update(agent)]
        if gate.evaluation is not None:
            moves.append(("evaluate", gate.evaluation))
        if not moves:
            break
        what, which = rng.choice(moves)
        if what == "start":
            while gate.started <= sampler.latest_batch:
                gate.start()
            running.add(sampler.next)
            oldest[sampler.start()] = min(gate.versions)
            max_running = max(max_running, len(running))
        elif what == "end":
            running.remove(which)
            for assignment in sampler.finished(which, informative[which]):
                batches.setdefault(assignment.batch, []).append(assignment)
                assert assignment.informative == informative[assignment.sample]
                assert (
                    oldest[assignment.sample]
                    <= max(gate.versions)
                    <= assignment.batch
                    <= oldest[assignment.sample] + staleness
                )
        elif what == "log":
            gate.logged(which)
        elif what == "learn":
            gate.weights_updated(which, gate.versions[which] + 1)
        else:
            gate.evaluated(which)
    assert gate.versions == [last] * agents, "every agent has learned from every batch"
    expected = batches_of(informative, size, size + extra, first_sample, total)
    assert [[assignment.sample for assignment in batches[batch]] for batch in range(done, last)] == expected
    assert all(assignment.last == (assignment is of[-1]) for of in batches.values() for assignment in of)
    assert not running
    assert sampler.next == expected[-1][-1] + 1, "every started sample belongs to a batch"
    assert max_running <= (staleness + 1) * size


def test_an_uninformative_sample_is_reassignment_at_once() -> None:
    sampler = DynamicSampler(size=2, limit=4, batch=0, sample=10, total=1)
    assert [sampler.start(), sampler.start(), sampler.may_start(0)] == [10, 11, False]
    assert sampler.finished(11, informative=False) == [], "sample 10 comes before it"
    assert sampler.may_start(0)
    assert sampler.start() == 12
    assert not sampler.may_start(0)
    assert sampler.finished(10, informative=True) == [Assignment(10, 0, True, False), Assignment(11, 0, False, False)]
    assert sampler.finished(12, informative=True) == [Assignment(12, 0, True, True)]
    assert (sampler.batch, sampler.may_start(9)) == (1, False), "there is no further batch"


def test_the_limit_completes_a_batch() -> None:
    sampler = DynamicSampler(size=2, limit=3, batch=5, sample=0, total=7)
    for sample in range(3):
        assert sampler.may_start(5)
        sampler.start()
        (assignment,) = sampler.finished(sample, informative=False)
        assert assignment == Assignment(sample, 5, False, last=sample == 2)
    assert (sampler.batch, sampler.may_start(5), sampler.may_start(6)) == (6, False, True)


def test_the_limit_counts_before_it_is_reached() -> None:
    # Two of three samples are used: whatever the third is, the sample behind it belongs to the next batch.
    sampler = DynamicSampler(size=2, limit=3, batch=0, sample=0, total=2)
    for sample in range(2):
        sampler.start()
        sampler.finished(sample, informative=False)
    sampler.start()
    assert (sampler.latest_batch, sampler.may_start(0)) == (1, False)


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be found among 2"):
        DynamicSampler(size=3, limit=2, batch=0, sample=0, total=1)
    sampler = DynamicSampler(size=1, limit=1, batch=0, sample=4, total=2)
    for sample in (3, 4):
        with pytest.raises(ValueError, match=f"sample {sample} is not running"):
            sampler.finished(sample, informative=True)
