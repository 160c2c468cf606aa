"""A run that is learned from again: its log, its checkpoints and its rows, made by real learners."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from marl_ray.cli.main import main
from marl_ray.config import Config, load, to_yaml
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.credit.groups import build_agent_batch
from marl_ray.launch.replay import ReplayRange
from marl_ray.learning.arguments import local_learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.storage.batch_log import LoggedStep
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.metrics import update_metrics
from marl_ray.telemetry.sinks import JsonlSink
from tests.credit.trees import episode, random_tree

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
STEPS, SAVED, CHANGED = 5, 2, 3
"""A checkpoint after step 2; from step 3 on, where there is another, a resumed run had another learning rate."""
SCHEDULE = 3 * 24
"""Optimizer steps of the quickstart, all epochs."""


def settings(**overrides: object) -> Config:
    shape = {"magrpo.num_generations": 2, "magrpo.lr_scheduler": "linear"}
    return load(QUICKSTART, "magrpo", shape | overrides)


def log_steps(folder: RunFolder, config: Config) -> None:
    """Trees at random, as if they had been played."""
    rng = random.Random(0)
    for step in range(STEPS):
        episodes = [episode(random_tree(2, 2, 2, "aligned", "random", rng)) for _ in range(2)]
        batches = tuple(build_agent_batch(episodes, agent, step, config) for agent in (0, 1))
        folder.log.append(LoggedStep(step, batches, 8, {}, ()))


def learn(folder: RunFolder, config: Config, learners: list[Learner], start: int, end: int) -> None:
    """What a run does of these steps, with rows and checkpoints."""
    files = JsonlSink(folder.metrics, folder.episodes, done=start)
    for step in range(start, end):
        row: dict = {"step": step + 1, "env_steps": 8 * (step + 1)}
        for agent, learner in enumerate(learners):
            row |= update_metrics(PolicyId((agent,)), learner.update(folder.log.batch(step, agent)), step + 1)
        files.row(row, "")
        if step + 1 in (SAVED, CHANGED):
            for agent, learner in enumerate(learners):
                learner.save(str(folder.checkpoints.begin(step + 1, PolicyId((agent,)))))
            folder.checkpoints.commit(TrainerState(step + 1, 8 * (step + 1), 2 * (step + 1)), keep=9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that was resumed after step 3 with another learning rate."""
    found = RunFolder(tmp_path_factory.mktemp("runs") / "r")
    before, after = settings(), settings(**{"magrpo.learning_rate": 1e-3})
    found.make()
    log_steps(found, before)
    found.write_config(to_yaml(before), 0)
    learn(
        found,
        before,
        [Learner(*local_learner_arguments(before, PolicyId((agent,)), SCHEDULE)) for agent in (0, 1)],
        0,
        CHANGED,
    )
    found.write_config(to_yaml(after), CHANGED)
    resumed = [Learner(*local_learner_arguments(after, PolicyId((agent,)), SCHEDULE)) for agent in (0, 1)]
    for agent, learner in enumerate(resumed):
        learner.load(str(found.checkpoints.policy_folder(found.checkpoints.all()[-1], PolicyId((agent,)))), CHANGED)
    learn(found, after, resumed, CHANGED, STEPS)
    return found


def test_all_that_was_recorded_agrees_to_the_bit(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Through a checkpoint and through a change of the config."""
    assert main(["replay", str(folder)]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert [line for line in lines if line.startswith("agent")] == [
        "agent 0, from its base model",
        "agent 0: 5 of 5 steps have recorded metrics; metrics are bit-identical",
        "agent 1, from its base model",
        "agent 1: 5 of 5 steps have recorded metrics; metrics are bit-identical",
    ]
    table = lines[1 : 2 + STEPS]
    assert len({len(line) for line in table}) == 1, "aligned"
    header = "step | loss recorded | grad_norm recorded | learning_rate recorded | logprob_gap recorded"
    assert " ".join(table[0].split()) == header
    for step, line in enumerate(table[1:], start=1):
        number, *pairs = line.split("|")
        assert int(number) == step
        assert all(found == recorded != "-" for found, recorded in map(str.split, pairs))


def test_some_steps_of_one_agent(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    for steps, begins, shown in (
        ("2:4", "agent 1, from checkpoint step_000002", [3, 4]),
        ("1:2", "agent 1, from its base model", [2]),
        ("4:", "agent 1, from checkpoint step_000003", [5]),
        (":1", "agent 1, from its base model", [1]),
    ):
        assert main(["replay", str(folder), "--agent", "1", "--steps", steps]) == 0
        first, _, *lines, last = capsys.readouterr().out.splitlines()
        assert first == begins
        assert [int(line.split()[0]) for line in lines] == shown
        assert last.endswith(" have recorded metrics; metrics are bit-identical")


def test_what_was_not_learned_like_this_fails(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    whole = folder.metrics.read_text()
    row = json.loads(whole.splitlines()[-1])
    try:
        for change, code in ((1e-7, 0), (1e-2, 1)):
            changed = row | {"agent_0/grad_norm": row["agent_0/grad_norm"] * (1 - change)}
            folder.metrics.write_text(json.dumps(changed) + "\n")
            assert main(["replay", str(folder), "--agent", "0", "--steps", "3:5"]) == code
            out, err = capsys.readouterr()
            assert out.splitlines()[-1] == (
                f"agent 0: 1 of 2 steps have recorded metrics; metrics differ by at most {change:.1e}"
            )
            assert out.splitlines()[2].split().count("-") == 4, "step 4 was not recorded"
            assert err.startswith(f"error: {folder} cannot be reproduced: metrics differ by") == (code == 1)
    finally:
        folder.metrics.write_text(whole)


def test_what_was_not_recorded_is_not_said_to_agree(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(folder.path, tmp_path / "r")
    (copy / "metrics.jsonl").unlink()
    assert main(["replay", str(copy), "--agent", "0", "--steps", "3:5"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "agent 0: 2 steps replayed; no recorded metrics to compare with"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--agent", "2"], "has agents 0 to 1: --agent 2 does not exist"),
        (["--steps", "3:3"], "--steps 3:3 is no step: give FROM:TO with FROM below TO"),
        (["--steps", ":0"], "--steps 0:0 is no step"),
        (["--steps", "2:7"], "has batches up to step 5 only: --steps cannot go on to 7"),
    ],
)
def test_what_cannot_be_replayed_is_said(
    folder: RunFolder, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(folder), *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


def test_a_log_that_begins_at_the_last_checkpoint(folder: RunFolder, tmp_path: Path) -> None:
    """As it is without keep_batches."""
    copy = RunFolder(tmp_path / "r")
    shutil.copytree(folder.path, copy.path)
    copy.log.drop_before(CHANGED)
    assert ReplayRange.through(copy, None, None) == ReplayRange(copy.checkpoints.all()[-1], CHANGED, CHANGED, STEPS)
    with pytest.raises(UserError, match=r"has no batch 2, on the way from step 2 to step 4: .* there are 3 to 4$"):
        ReplayRange.through(copy, 2, 4)
    copy.log.drop_before(STEPS)
    with pytest.raises(UserError, match=r"has no batch to learn from again: output\.keep_batches: true keeps all"):
        ReplayRange.through(copy, None, None)
