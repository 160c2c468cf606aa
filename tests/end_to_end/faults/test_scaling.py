"""Generators are added and removed during a run, without an effect on its results."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.faults.actor_faults import (
    RunResult,
    console_file,
    differences,
    start,
    wait_for_result,
    wait_for_steps,
)
from tests.end_to_end.helpers import environment
from tests.factories import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

STEPS = 40
"""Enough steps for a generator to start meanwhile."""
SMALL = ["--override", f"magrpo.max_steps={STEPS}", "resources.generator.cpus=0.25"]


def scale(folder: Path, agent: int, replicas: int) -> tuple[int, str]:
    """Run `marl-ray scale`; return its exit code and output."""
    command = [sys.executable, "-m", "marl_ray", "scale", str(folder)]
    command += ["--agent", str(agent), "--replicas", str(replicas)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment())
    return result.returncode, result.stdout + result.stderr


def run(folder: Path, *replicas: int) -> RunResult:
    """Run once, scaling the second agent to each number of generators in turn."""
    begin = time.monotonic()
    process = start(folder, "local", 0, *SMALL)
    try:
        for number in replicas:
            assert wait_for_steps(process, folder, 1)
            code, text = scale(folder, 1, number)
            assert (code, text.partition(" (")[0]) == (0, f"agent 1 now has {number} generator{'s' * (number > 1)}")
        if replicas:
            assert process.poll() is None, "the run was scaled while it trained"
            assert scale(folder, 2, 1) == (1, "error: there is no agent 2: this run has agents 0 to 1\n")
            code, text = scale(folder, 0, 90)
            assert code == 1
            assert text.startswith("error: the cluster has no place for agent 0 generator ")
        return wait_for_result(process, folder, begin)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_scaling_does_not_change_the_results(tmp_path: Path) -> None:
    reference = run(tmp_path / "reference")
    scaled = run(tmp_path / "scaled", 2, 1)
    assert scaled.rows == reference.rows, differences(scaled.rows, reference.rows)
    assert scaled.weights == reference.weights
    assert "agent 1 generator 1 serves in its incarnation number 1\n" in scaled.console
    assert "agent 0 generator 1 serves" not in scaled.console, "an addition is all or nothing"
    assert "agent 1 generator 1 was removed\n" in scaled.console
    assert not (tmp_path / "scaled" / "requests").exists()
    assert scale(tmp_path / "scaled", 1, 2)[1].endswith("is not being run: only a run in progress can be scaled\n")
    assert console_file(tmp_path / "scaled").exists()
