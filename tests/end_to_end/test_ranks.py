"""A run whose learner has two ranks, and its replay with one rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_ray.core.ids import PolicyId
from marl_ray.launch.replay import ROUNDING, ReplayRange, replay
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder
from tests.end_to_end.helpers import ONE_AGENT, QUICK, rows, train

pytestmark = pytest.mark.slow


def test_a_learner_of_two_ranks_trains_and_one_rank_replays_the_same(tmp_path: Path) -> None:
    result = train(
        *QUICK,
        *ONE_AGENT,
        "resources.learner.ranks=2",
        "magrpo.max_steps=3",
        "magrpo.save_steps=2",
        "magrpo.rollout_buffer_size=4",
        "magrpo.max_logprob_gap=1e-3",
        "dataset.eval_split=null",
        "output.keep_batches=true",
        f"output.base_dir={tmp_path}",
        "output.run_name=r",
    )
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
