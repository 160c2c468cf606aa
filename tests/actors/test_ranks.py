"""The ranks of a learner as Ray actors: if one is killed, all are replaced, with the same result."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from marl_ray.core.batch import Batch
from marl_ray.core.errors import UserError
from marl_ray.learning.arguments import LearnerArguments
from marl_ray.learning.learner import Learner
from marl_ray.learning.ranks import RankGroup
from tests.actors.echo_actor import kill
from tests.actors.helpers import ClosedQueue, FaultyQueue, MemoryHistory, generators, learner, learner_arguments
from tests.learning.builders import numbered, some_groups
from tests.learning.rank_processes import run_ranks

pytestmark = [pytest.mark.usefixtures("local_ray"), pytest.mark.slow]

TEXTS = ["def f(): pass"]


def learn_without_faults(
    ranks: RankGroup, arguments: LearnerArguments, batches: Sequence[Batch], folder: str
) -> list[str]:
    learner = Learner(*arguments, ranks=ranks)
    stats = [repr(learner.update(batch)) for batch in batches]
    learner.export(folder, TEXTS)
    return stats


def test_after_the_loss_of_a_rank_all_ranks_restart_and_learn_the_same(tmp_path: Path) -> None:
    batches = [numbered(step, some_groups(5, step), 3) for step in range(3)]

    async def scenario() -> list[str]:
        trainer, log = learner(ranks=2, restarts=1), MemoryHistory()
        try:
            await trainer.start()
            await trainer.connect(generators(), log)  # generators that have not started
            stats = []
            for batch in batches:
                log.batches[batch.step] = batch
                queue = FaultyQueue(batch, signal.SIGKILL, trainer, 1) if batch.step == 2 else ClosedQueue(batch)
                stats.append(repr(await trainer.learn(queue)))
                if batch.step == 0:
                    await trainer.save(str(tmp_path / "saved"))
                    log.saved = (1, str(tmp_path / "saved"))
            assert [rank.incarnation for rank in trainer.ranks.serving()] == [2, 2]
            await trainer.export(str(tmp_path / "restarted"), TEXTS)
            kill(trainer.ranks.serving()[0])
            with pytest.raises(UserError, match=r"resources.learner.max_restarts allows 1 restarts within an hour"):
                await trainer.learn(ClosedQueue(replace(batches[0], step=3)))
            return stats
        finally:
            await trainer.close()

    stats = asyncio.run(scenario())
    arguments = learner_arguments(ranks=2)
    expected_stats, _ = run_ranks(2, learn_without_faults, arguments, batches, str(tmp_path / "expected"))
    assert stats == expected_stats
    restarted, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("restarted", "expected"))
    assert restarted.keys() == expected.keys()
    assert all((restarted[name] == tensor).all() for name, tensor in expected.items()), "bitwise"
