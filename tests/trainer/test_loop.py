"""The training loop on a virtual clock with simulated engines, learners and sandbox: staleness and waiting times."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate import Case, run_trainer, simulate
from benchmarks.simulated_actors import VirtualLoop
from benchmarks.simulated_durations import Pace

EQUAL = Pace(token_s=0.02, slots=16, mean_tokens=100, learn_s=0.14, optimizer_s=0.1, publish_s=0.1)
"""Rollout and learning take about the same time, and engines have fewer slots than a batch needs."""


@settings(max_examples=25, deadline=None)
@given(
    speeds=st.lists(st.sampled_from([0.001, 0.1, 0.5]), min_size=1, max_size=3),
    staleness=st.integers(0, 3),
    tasks=st.integers(1, 5),
    turns=st.integers(1, 3),
    streams=st.booleans(),
    mtbf_s=st.sampled_from([0.0, 40.0]),
    seed=st.integers(0, 1000),
    shared=st.booleans(),
)
def test_the_staleness_bound_holds_without_deadlock(
    speeds: list[float], staleness: int, tasks: int, turns: int, streams: bool, mtbf_s: float, seed: int, shared: bool
) -> None:
    # The trainer raises unless every batch is learned once and in order; a deadlock raises too.
    paces = tuple(replace(EQUAL, learn_s=speed) for speed in speeds)
    case = Case(
        paces,
        (2,) * len(paces),
        staleness,
        tasks,
        steps=5,
        turns=turns,
        group=2,
        streams=streams,
        mtbf_s=mtbf_s,
        restart_s=5.0,
        seed=seed,
        shared=shared,
    )
    figures = simulate(case)
    assert 0 <= figures.staleness_mean <= figures.staleness_max <= staleness
    assert figures == simulate(case), "the order of events is a function of the case"


@pytest.fixture(scope="module")
def equal() -> Case:
    return Case((EQUAL, EQUAL), (1, 1), tasks=8, steps=8, group=8)


def test_learning_during_the_rollout_shortens_a_synchronous_step(equal: Case) -> None:
    barrier, streamed = simulate(replace(equal, streams=False)), simulate(equal)
    assert streamed.staleness_max == 0
    assert streamed.samples_per_s > 1.4 * barrier.samples_per_s


def test_staleness_1_overlaps_rollouts_and_learning(equal: Case) -> None:
    barrier, ahead = simulate(replace(equal, streams=False)), simulate(replace(equal, staleness=1))
    assert ahead.staleness_max == 1
    assert ahead.samples_per_s > 1.6 * barrier.samples_per_s
    assert ahead.gate_idle < 0.05


def test_a_slow_learner_makes_the_other_wait() -> None:
    slow = replace(EQUAL, learn_s=0.5)
    figures = simulate(Case((EQUAL, slow), (1, 1), tasks=4, steps=6, group=4))
    assert figures.learner_idle[0] > figures.learner_idle[1] + 0.3
    assert figures.gate_idle > 0.2


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_engines_idle_for_at_most_a_step(tmp_path: Path, staleness: int) -> None:
    slow = replace(EQUAL, learn_s=1.5)
    case = Case((EQUAL, slow), (1, 1), staleness, tasks=4, steps=6, group=4)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        sink, _ = runner.run(run_trainer(case, tmp_path))
    batches_left = len(sink.rows) - staleness - 1
    for step, row in enumerate(sink.rows):
        assert row["time/idle"] <= row["time/step"] + 1e-9
        if step < batches_left:
            assert row["time/idle"] > 0.5 * row["time/step"]
            assert row["time/held_up_by"] == 1
