"""Batch logs of version 0.2 are read, and a run that continues one writes the current format beside them.

`version_0_2/step_000007.npz` was written by version 0.2 from the batches below.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from marl_ray.core.batch import Batch, CriticSample, Group, MiniBatch
from marl_ray.core.episode import AgentCall, Completion, sibling_calls
from marl_ray.core.errors import UserError
from marl_ray.credit.groups import weight_group
from marl_ray.storage.batch_log import BatchLog, LoggedStep
from tests.credit.trees import tree_config
from tests.storage.logged_batches import synthetic

WRITTEN = Path(__file__).parent / "version_0_2"


def completion(first: int, reason: str = "stop", schema: str = "") -> Completion:
    return Completion((first, first + 1), "", (-0.1 * first, -0.0), reason, ((1, 1), (2, 1)), schema)


CRITIC = Group(
    0,
    sibling_calls((5, 6), [completion(1), completion(2, "length")]),
    (1.5, -0.25),
    (0.5, 0.5),
    critic_sample=CriticSample((5, 6, 7), (1.0, -0.5), (((8, 9), (10,)), ())),
)
BASELINES = Group(
    1,
    sibling_calls((7,), [completion(3, schema='{"type": "object"}'), completion(4)], agent=1),
    (0.1, 0.2),
    (-0.05, 0.05),
    {"baselines": (0.3, 0.4)},
)
PROGRAM = Group(
    0,
    (
        AgentCall(1, "", (20, 21), completion(11), 1, 0),
        AgentCall(1, "", (20, 21, 11, 12, 22), completion(12), 2, 0),
        AgentCall(1, "", (), Completion((), "", (), "stop", ()), 3, 1),
    ),
    (1.0, 1.0, -2.0),
    (0.75, 0.75, -1.5),
)
STEP = LoggedStep(
    step=7,
    batches=(
        Batch(7, (MiniBatch((CRITIC,), 1), MiniBatch((), 3))),
        Batch(7, (MiniBatch((BASELINES, PROGRAM), 17),)),
        Batch(7, ()),
    ),
    joint_samples=12,
    row={"turn_1/reward_mean": 0.5, "note": "é"},
    episodes=[{"task": "toy/1", "nodes": []}],
    prompt_samples=3,
    skipped=(4, 9),
)


def test_a_file_of_version_0_2_is_read_as_it_was_written() -> None:
    log = BatchLog(WRITTEN)
    assert log.steps() == [7]
    assert log.read(7) == STEP
    assert repr(log.read(7)) == repr(STEP), "including -0.0 and the types of numbers"
    assert [log.batch(7, agent) for agent in range(3)] == list(STEP.batches)
    assert log.prompt_samples(7) == 3


def test_a_damaged_file_of_version_0_2_is_refused(tmp_path: Path) -> None:
    content = bytearray((WRITTEN / "step_000007.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "step_000007.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"step_000007\.npz is damaged"):
        BatchLog(tmp_path).read(7)


def test_its_baselines_are_the_input_of_the_estimator() -> None:
    # A learner that subtracts a KL term from the returns applies the estimator a second time.
    run = tree_config(2, 2, 2, estimator="remax", turn_gradient_weights=[1.0, 1.0])
    again = weight_group(BASELINES, run.agents[1], run.training)
    assert again.weights == pytest.approx((-0.1, -0.1))


def test_old_and_new_files_are_one_log(tmp_path: Path) -> None:
    shutil.copy(WRITTEN / "step_000007.npz", tmp_path)
    log = BatchLog(tmp_path)
    log.append(synthetic(8, agents=3, group_count=1, size=1, tokens=1, prompt=1))
    assert log.steps() == [7, 8]
    log.append(replace(STEP, joint_samples=13))  # the step is repeated
    assert log.steps() == [7, 8]
    assert log.read(7).joint_samples == 13
    log.drop_before(8)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000008.arrow"]
