"""The training loop with dynamic sampling on simulated hardware."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from benchmarks.simulate import Case, run_trainer
from benchmarks.simulated_actors import VirtualLoop
from benchmarks.simulated_durations import Pace
from marl_ray.core.errors import UserError
from marl_ray.core.state import TrainerState
from marl_ray.storage.batch_log import LoggedStep
from marl_ray.storage.resume import ResumeState
from marl_ray.telemetry.metrics import MetricRow

PACE = Pace(token_s=0.02, slots=16, mean_tokens=100, learn_s=0.05, optimizer_s=0.1, publish_s=0.1)
CASE = Case((PACE, PACE), (1, 1), tasks=3, steps=6, group=3, uninformative=0.6)


@dataclass
class Kept:
    """A batch log in memory."""

    steps: dict[int, LoggedStep] = field(default_factory=dict)

    def append(self, rollout: LoggedStep) -> None:
        assert rollout.step == len(self.steps), "batches are logged in order"
        self.steps[rollout.step] = rollout

    def read(self, step: int, agents: int) -> LoggedStep:
        return self.steps[step]

    def prompt_samples(self, step: int) -> int:
        return self.steps[step].prompt_samples

    def drop_before(self, step: int) -> None:
        """Keep all batches."""


def run(
    case: Case, folder: Path, resume_state: ResumeState | None = None, log: Kept | None = None
) -> tuple[list[MetricRow], Kept]:
    log = Kept() if log is None else log
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        sink, _ = runner.run(run_trainer(case, folder, resume_state, log))
    return sink.rows, log


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_batch_consists_of_the_first_informative_samples(tmp_path: Path, staleness: int) -> None:
    rows, log = run(replace(CASE, staleness=staleness), tmp_path)
    sample = 0
    for step, row in enumerate(rows):
        kept = log.steps[step]
        numbers = range(sample, sample + kept.prompt_samples)
        assert set(kept.skipped) < set(numbers)
        assert kept.prompt_samples - len(kept.skipped) == 3
        assert numbers[-1] not in kept.skipped, "the last sample is informative"
        for batch in kept.batches:
            groups = batch.mini_batches[0].groups
            assert len(groups) == 3 * 2, "two turns per sample"
            assert [group.turn for group in groups] == [0, 1] * 3, "sample by sample"
        assert row["rollout/skipped"] == len(kept.skipped)
        assert row["rollout/episodes"] == kept.prompt_samples
        assert row["rollout/joint_samples"] == kept.prompt_samples * 2 * 3, "skipped samples count too"
        sample += kept.prompt_samples
        assert row.get("agent_0/staleness_max", 0) <= staleness
    assert len(rows) == 6
    assert sum(len(kept.skipped) for kept in log.steps.values()) > 0
    assert log.steps[0].skipped == run(CASE, tmp_path / "again")[1].steps[0].skipped


@pytest.mark.parametrize(("done", "logged"), [(0, 0), (2, 2), (2, 4), (5, 6)])
def test_a_resumed_run_continues_at_the_right_sample(tmp_path: Path, done: int, logged: int) -> None:
    _, whole = run(CASE, tmp_path / "whole")
    before = [whole.steps[step] for step in range(done)]
    state = TrainerState(done, sum(r.joint_samples for r in before), 2 * done, sum(r.prompt_samples for r in before))
    log = Kept({step: whole.steps[step] for step in range(logged)})
    rows, resumed = run(CASE, tmp_path / "resumed", ResumeState(None, state, logged, frozenset()), log)
    assert len(rows) == 6 - done
    assert rows[-1]["env_steps"] == sum(r.joint_samples for r in whole.steps.values())
    for step, kept in whole.steps.items():
        again = resumed.steps[step]
        assert (again.prompt_samples, again.skipped, again.batches) == (kept.prompt_samples, kept.skipped, kept.batches)


def test_without_uninformative_samples_nothing_is_skipped(tmp_path: Path) -> None:
    rows, log = run(replace(CASE, uninformative=0.0), tmp_path)
    assert [(kept.prompt_samples, kept.skipped) for kept in log.steps.values()] == [(3, ())] * 6
    assert rows[-1]["rollout/skipped"] == 0


def test_a_run_without_informative_samples_ends_at_once(tmp_path: Path) -> None:
    says = "step 1 sampled 12 tasks, of which 0 of 3 required have different rewards: there is nothing to learn from"
    with pytest.raises(UserError, match=says):
        run(replace(CASE, uninformative=1.0), tmp_path)


def test_a_step_with_too_few_informative_samples_learns_from_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, log = run(replace(CASE, uninformative=0.9, steps=4), tmp_path)
    sizes = [kept.prompt_samples - len(kept.skipped) for kept in log.steps.values()]
    assert min(sizes) < 3
    assert all(kept.prompt_samples == 12 for kept, size in zip(log.steps.values(), sizes, strict=True) if size < 3)
    assert capsys.readouterr().err.count("so it learns from fewer") == 1
