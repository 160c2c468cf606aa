"""An agent gets more generators, and fewer, while its run goes on; nobody sees it in what the run leaves."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.end_to_end.conftest import ROOT, environment
from tests.end_to_end.survival.trials import Left, differences, left, said, start, wait

STEPS = 40
"""A generator starts in less."""
SMALL = ["--override", f"magrpo.max_steps={STEPS}", "resources.generator.cpus=0.25"]


def scale(folder: Path, agent: int, replicas: int) -> tuple[int, str]:
    """Exit code and words of the command."""
    command = [sys.executable, "-m", "marl_ray", "scale", str(folder)]
    command += ["--agent", str(agent), "--replicas", str(replicas)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment())
    return done.returncode, done.stdout + done.stderr


def run(folder: Path, *replicas: int) -> Left:
    """A run whose second agent has so many generators, one number after another."""
    begun = time.monotonic()
    process = start(folder, "local", 0, *SMALL)
    try:
        for number in replicas:
            assert wait(process, folder, 1)
            code, text = scale(folder, 1, number)
            assert (code, text.partition(" now")[0]) == (0, f"agent 1 has {number} generator{'s' * (number > 1)}")
        if replicas:
            assert process.poll() is None, "all that while it trained"
            assert scale(folder, 2, 1) == (1, "error: there is no agent 2: this run has agents 0 to 1\n")
            code, text = scale(folder, 0, 90)
            assert code == 1
            assert text.startswith("error: the cluster has no place for agent 0 generator ")
        return left(process, folder, begun)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_replicas_come_and_go(tmp_path: Path) -> None:
    undisturbed = run(tmp_path / "undisturbed")
    scaled = run(tmp_path / "scaled", 2, 1)
    assert scaled.rows == undisturbed.rows, differences(scaled.rows, undisturbed.rows)
    assert scaled.weights == undisturbed.weights
    assert "agent 1 generator 1 serves in its incarnation number 1\n" in scaled.said
    assert "agent 0 generator 1 serves" not in scaled.said, "all or nothing"
    assert "agent 1 generator 1 was taken away\n" in scaled.said
    assert not (tmp_path / "scaled" / "requests").exists()
    assert scale(tmp_path / "scaled", 1, 2)[1].endswith("is not being run: only a run in progress can be scaled\n")
    assert said(tmp_path / "scaled").exists()
