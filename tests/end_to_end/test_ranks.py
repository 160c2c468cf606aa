"""A run whose learner has two ranks, and its replay with one rank."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from marl_ray.core.ids import PolicyId
from marl_ray.launch.replay import ROUNDING, ReplayRange, replay
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder
from tests.end_to_end.helpers import ONE_AGENT, QUICK, command, environment, rows, train
from tests.factories import ROOT

pytestmark = pytest.mark.slow


def two_ranks(folder: Path, name: str) -> list[str]:
    return [
        *QUICK,
        *ONE_AGENT,
        "resources.learner.ranks=2",
        "magrpo.max_steps=3",
        "magrpo.save_steps=2",
        "magrpo.rollout_buffer_size=4",
        "magrpo.max_logprob_gap=1e-3",
        "dataset.eval_split=null",
        "output.keep_batches=true",
        f"output.base_dir={folder}",
        f"output.run_name={name}",
    ]


def test_a_learner_of_two_ranks_trains_and_one_rank_replays_the_same(tmp_path: Path) -> None:
    result = train(*two_ranks(tmp_path, "r"))
    assert result.returncode == 0, result.stderr
    trained = rows(tmp_path / "r", "step")
    assert [row["agent_0/optimizer_steps"] for row in trained] == [1, 1, 1]
    assert max(row["agent_0/logprob_gap"] for row in trained) < 1e-3, "the engine has the gathered weights"

    folder, policy = RunFolder(tmp_path / "r"), PolicyId((0,))
    assert (folder.checkpoints.all()[0] / policy.key / "shards").is_dir()
    for first in (0, 2):  # from the base model, and from the checkpoint of two ranks
        replayed = list(replay(folder, SavedRun.read(folder.path), policy, ReplayRange.find(folder, first, 3)))
        assert [step.step for step in replayed] == list(range(first + 1, 4))
        assert max(step.difference for step in replayed) < ROUNDING


@pytest.mark.nightly
def test_two_ranks_in_turns_with_two_replicas_learn_the_same_and_survive_a_loss(tmp_path: Path) -> None:
    apart, turns = tmp_path / "apart", tmp_path / "turns"
    result = train(*two_ranks(tmp_path, "apart"))
    assert result.returncode == 0, result.stderr
    settings = [*two_ranks(tmp_path, "turns"), "resources.colocate=turns", "resources.generator.replicas=2"]
    run = subprocess.Popen(command(*settings), stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment())
    try:
        wait_for(lambda: (turns / "metrics.jsonl").exists() or run.poll() is not None)
        ranks = [p for p in psutil.Process(run.pid).children(recursive=True) if "ray::LearnerActor" in p.name()]
        assert len(ranks) == 2
        ranks[1].kill()
        _, messages = run.communicate(timeout=300)
    finally:
        run.kill()
    assert run.returncode == 0, messages
    assert "serves in its incarnation number 2" in messages
    first, second = (next((folder / "models").rglob("model.safetensors")) for folder in (apart, turns))
    assert first.read_bytes() == second.read_bytes()
    for row in rows(turns, "step")[:1]:
        rollout, asleep = (row[f"memory/device_0/{phase}"] for phase in ("play", "asleep"))
        assert rollout > asleep + 450, "both replicas release a KV cache of 256 MB"


def wait_for(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
