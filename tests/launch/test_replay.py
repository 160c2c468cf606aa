"""Replaying a run whose log, checkpoints and metrics were written by real learners."""

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
from marl_ray.launch.replay import ReplayRange
from marl_ray.learning.arguments import learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.storage.batch_log import LoggedStep
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.metrics import update_metrics
from marl_ray.telemetry.sinks import JsonlSink
from tests.credit.trees import episode, random_tree
from tests.credit.whole_batches import build_agent_batch

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
STEPS, SAVED, CHANGED = 5, 2, 3
"""Checkpoints after steps 2 and 3; from step 3 on a resumed run has another learning rate."""
SCHEDULE = 3 * 24
"""Optimizer steps of the quickstart over all epochs."""


def settings(**overrides: object) -> Config:
    shape = {"magrpo.num_generations": 2, "magrpo.lr_scheduler": "linear"}
    return load(QUICKSTART, "magrpo", shape | overrides)


def log_steps(folder: RunFolder, config: Config) -> None:
    """Log batches of random trees."""
    rng = random.Random(0)
    for step in range(STEPS):
        episodes = [episode(random_tree(2, 2, 2, "aligned", "random", rng)) for _ in range(2)]
        batches = tuple(build_agent_batch(episodes, agent, step, config) for agent in (0, 1))
        folder.log.append(LoggedStep(step, batches, 8, {}, ()))


def learn(folder: RunFolder, config: Config, learners: list[Learner], start: int, end: int) -> None:
    """Learn the steps as a run does, with metric rows and checkpoints."""
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
    """The folder of a run that was resumed after step 3 with another learning rate."""
    found = RunFolder(tmp_path_factory.mktemp("runs") / "r")
    before, after = settings(), settings(**{"magrpo.learning_rate": 1e-3})
    found.make()
    log_steps(found, before)
    found.write_config(to_yaml(before), 0)
    learn(
        found,
        before,
        [Learner(*learner_arguments(before, PolicyId((agent,)), SCHEDULE)) for agent in (0, 1)],
        0,
        CHANGED,
    )
    found.write_config(to_yaml(after), CHANGED)
    resumed = [Learner(*learner_arguments(after, PolicyId((agent,)), SCHEDULE)) for agent in (0, 1)]
    for agent, learner in enumerate(resumed):
        learner.load(str(found.checkpoints.all()[-1] / PolicyId((agent,)).key), CHANGED)
    learn(found, after, resumed, CHANGED, STEPS)
    return found


def test_all_recorded_metrics_agree_bit_for_bit(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    # Across a checkpoint and a change of the config.
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


def test_a_range_of_steps_of_one_agent(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_difference_from_the_record_fails(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_an_unrecorded_step_is_not_reported_as_equal(
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
        (["--steps", "2:7"], "has batches up to step 5 only: --steps cannot end at 7"),
    ],
)
def test_an_impossible_range_is_an_error(
    folder: RunFolder, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(folder), *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


def test_a_log_that_starts_at_the_last_checkpoint(folder: RunFolder, tmp_path: Path) -> None:
    # As without output.keep_batches.
    copy = RunFolder(tmp_path / "r")
    shutil.copytree(folder.path, copy.path)
    copy.log.drop_before(CHANGED)
    assert ReplayRange.find(copy, None, None) == ReplayRange(copy.checkpoints.all()[-1], CHANGED, CHANGED, STEPS)
    with pytest.raises(UserError, match=r"has no batch 2 between step 2 and step 4: .* the log has 3 to 4$"):
        ReplayRange.find(copy, 2, 4)
    copy.log.drop_before(STEPS)
    with pytest.raises(UserError, match=r"has no logged batch: output\.keep_batches: true keeps all"):
        ReplayRange.find(copy, None, None)
