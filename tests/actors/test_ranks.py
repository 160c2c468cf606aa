"""The ranks of a learner as Ray actors: one is killed, all are replaced, and the same is learned."""

from __future__ import annotations

import asyncio
import os
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
from tests.actors.echo_actor import process_of
from tests.actors.helpers import ClosedQueue, FaultyQueue, Log, generators, learner
from tests.learning.rank_processes import run_ranks
from tests.learning.test_streaming import numbered, some_groups

pytestmark = pytest.mark.usefixtures("local_ray")

TEXTS = ["def f(): pass"]


def undisturbed(ranks: RankGroup, arguments: LearnerArguments, batches: Sequence[Batch], folder: str) -> list[str]:
    found = Learner(*arguments, ranks=ranks)
    stats = [repr(found.update(batch)) for batch in batches]
    found.export(folder, TEXTS)
    return stats


def test_where_a_rank_is_killed_all_begin_anew_and_learn_the_same(tmp_path: Path) -> None:
    batches = [numbered(step, some_groups(5, step), 3) for step in range(3)]

    async def scenario() -> tuple[list[str], LearnerArguments]:
        trainer, log = learner(ranks=2, restarts=1), Log()
        try:
            await trainer.start()
            await trainer.connect(generators(), log)  # nobody serves, so nothing is sent
            stats = []
            for batch in batches:
                log.batches[batch.step] = batch
                queue = FaultyQueue(batch, signal.SIGKILL, trainer, 1) if batch.step == 2 else ClosedQueue(batch)
                stats.append(repr(await trainer.learn(queue)))
                if batch.step == 0:
                    await trainer.save(str(tmp_path / "saved"))
                    log.saved = (1, str(tmp_path / "saved"))
            assert [rank.incarnation for rank in trainer.ranks.serving()] == [2, 2]
            await trainer.export(str(tmp_path / "found"), TEXTS)
            os.kill(process_of(trainer.ranks.serving()[0]), signal.SIGKILL)
            with pytest.raises(UserError, match=r"resources.learner.max_restarts allows 1 restarts within an hour"):
                await trainer.learn(ClosedQueue(replace(batches[0], step=3)))
            (recipe, *_) = (member.recipe for member in trainer.ranks._members.values())
            return stats, recipe.arguments[1]
        finally:
            await trainer.close()

    stats, arguments = asyncio.run(scenario())
    wanted, _ = run_ranks(2, undisturbed, arguments, batches, str(tmp_path / "wanted"))
    assert stats == wanted
    found, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("found", "wanted"))
    assert found.keys() == expected.keys()
    assert all((found[name] == tensor).all() for name, tensor in expected.items()), "in every bit"
