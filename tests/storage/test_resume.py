"""The resume state of a run, and which configs may resume it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from marl_ray.config import load, to_yaml
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainerState
from marl_ray.storage.resume import ResumeState, RunIsDone, SavedRun, check_resume
from marl_ray.storage.run_folder import RunFolder, StoredHistory
from tests.storage.logged_batches import synthetic

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
START = TrainerState(0, 0, 0)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "r")
    found.make()
    found.write_config(to_yaml(load(QUICKSTART, "magrpo", {"output.run_name": "r"})), 0)
    return found


def checkpoint(folder: RunFolder, step: int) -> Path:
    for agent in (0, 1):
        folder.checkpoints.begin(step, PolicyId((agent,)))
    return folder.checkpoints.commit(TrainerState(step, 128 * step, 2 * step), keep=2)


def log(folder: RunFolder, *steps: int) -> None:
    for step in steps:
        folder.log.append(synthetic(step, agents=2, group_count=1, size=1, tokens=1, prompt=1))


def evaluations(folder: RunFolder, *steps: int) -> None:
    rows = [{"step": step, "eval/episodes": 4} for step in steps] + [{"step": 1, "turn_1/reward_mean": 0.5}]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_with_only_a_config_resumes_from_its_start(folder: RunFolder) -> None:
    assert ResumeState.of(folder) == ResumeState.at_start() == ResumeState(None, START, 0, frozenset())


def test_a_run_without_a_checkpoint_resumes_from_its_log(folder: RunFolder) -> None:
    log(folder, 0, 1, 3)
    evaluations(folder, 0, 2, 4)
    assert ResumeState.of(folder) == ResumeState(None, START, 2, frozenset({0, 2})), "batch 3 is behind a gap"


def test_a_run_resumes_from_the_last_logged_step(folder: RunFolder) -> None:
    path = checkpoint(folder, 4)
    state = TrainerState(4, 512, 8)
    assert ResumeState.of(folder) == ResumeState(path, state, 4, frozenset())
    log(folder, 2, 3, 4, 5)
    assert ResumeState.of(folder) == ResumeState(path, state, 6, frozenset())
    assert ResumeState.of(folder, total=5).logged == 5, "the run was shortened"
    folder.log.drop_before(5)
    assert ResumeState.of(folder).logged == 4


def test_evaluations_that_are_still_due(folder: RunFolder) -> None:
    assert ResumeState.at_start().evaluations(2, 6) == [0, 2, 4, 6]
    assert ResumeState.at_start().evaluations(0, 6) == [0, 6]
    checkpoint(folder, 2)
    log(folder, 2, 3)
    evaluations(folder, 0, 2, 4)
    assert ResumeState.of(folder).evaluations(2, 6) == [6]
    evaluations(folder, 0)
    assert ResumeState.of(folder).evaluations(2, 6) == [2, 4, 6]


def test_a_policys_history_is_the_newest_checkpoint_and_the_log(folder: RunFolder) -> None:
    history = StoredHistory(folder, PolicyId((1,)))
    assert history.checkpoint() is None
    path = checkpoint(folder, 4)
    log(folder, 4)
    assert history.checkpoint() == (4, str(path / "agent_1"))
    assert history.batch(4) == folder.log.read(4).batches[1]
    with pytest.raises(UserError, match=r"step_000005\.arrow is missing"):
        history.batch(5)


def test_a_finished_run_cannot_be_resumed_without_more_steps(folder: RunFolder) -> None:
    saved = SavedRun.read(folder.path)
    config = saved.config({"output.save_final_model": False, "dataset.eval_split": None, "magrpo.max_steps": 3})
    saved.folder.config.write_text(to_yaml(config))
    saved = SavedRun.read(folder.path)
    check_resume(config, saved, 192)
    checkpoint(folder, 3)
    with pytest.raises(RunIsDone, match=r"has done all of its 3 steps: to go on, raise magrpo\.num_train_epochs"):
        check_resume(config, saved, 192)
    check_resume(saved.config({"magrpo.max_steps": 4}), saved, 192)


def test_models_of_an_earlier_end_do_not_finish_an_extended_run(folder: RunFolder) -> None:
    saved = SavedRun.read(folder.path)
    folder.config.write_text(to_yaml(saved.config({"dataset.eval_split": None, "magrpo.max_steps": 3})))
    saved = SavedRun.read(folder.path)
    checkpoint(folder, 3)
    for steps in (2, 3):
        for policy in saved.config().policies:
            folder.model(policy).mkdir(parents=True, exist_ok=True)
            (folder.model(policy) / "trained.json").write_text(f'{{"steps": {steps}}}')
        with nullcontext() if steps == 2 else pytest.raises(RunIsDone):
            check_resume(saved.config(), saved, 192)


def test_a_damaged_config_is_named(folder: RunFolder) -> None:
    whole = folder.config.read_text()
    for text, says in (
        (whole.replace("max_new_tokens: 48", "max_new_tokens: many"), "config.yaml: magrpo.max_new_tokens should be"),
        ("magrpo: {", "config.yaml is not valid YAML"),
        ("seed: 1\n", "config.yaml has no section magrpo or grpo"),
        ("- 1\n", "config.yaml contains no settings"),
        ("magrpo: 3\n", "config.yaml: 'magrpo' should be a section"),
    ):
        folder.config.write_text(text)
        with pytest.raises(UserError, match=rf"^{folder.path}/{says}"):
            SavedRun.read(folder.path).config()


def test_the_config_of_earlier_steps_is_kept(folder: RunFolder) -> None:
    first = folder.config.read_text()
    folder.write_config(first, 12)
    assert not folder.former_config(12).exists(), "nothing has changed"
    for text in ("second", "third"):
        folder.write_config(text, 12)
        assert folder.config.read_text() == text
        assert folder.former_config(12).read_text() == first
    folder.write_config("fourth", 20)
    assert folder.former_config(20).read_text() == "third"
    assert folder.former_config(20).name == "config.step_000020.yaml"


def test_configs_of_repeated_steps_are_deleted(folder: RunFolder) -> None:
    # The config of the steps before the resume point is kept.
    first = folder.config.read_text()
    folder.write_config("second", 6)
    folder.write_config("third", 8)
    folder.write_config("third", 4)
    assert folder.former_configs() == {4: folder.former_config(4)}
    assert folder.former_config(4).read_text() == first
    folder.write_config(first, 2)
    assert folder.former_configs() == {}, "the first config holds for all steps again"
    assert folder.config.read_text() == first


def test_a_shared_policys_history_covers_all_its_agents(folder: RunFolder) -> None:
    log(folder, 0)
    one, two = folder.log.read(0).batches
    (shared,) = StoredHistory(folder, PolicyId((0, 1))).batch(0).mini_batches
    assert shared.groups == (*one.mini_batches[0].groups, *two.mini_batches[0].groups)
    saved = SavedRun.read(folder.path)
    with pytest.raises(UserError, match=r"^a resumed run keeps its policies: start a new run to change it$"):
        check_resume(saved.config({"magrpo.policy": 0}), saved, 192)
