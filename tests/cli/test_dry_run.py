"""The dry run: the resolved config on stdout, the budget and errors on stderr, nothing started or downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from marl_ray.cli.train import train_main
from marl_ray.config import from_tree, load, to_tree, to_yaml
from marl_ray.launch.run_checks import check
from tests.factories import ROOT

CONFIGS = ROOT / "configs"


def test_dry_run_prints_only_the_config_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", str(CONFIGS / "mt_magrpo_he_config.yaml"), "--dry-run", "--num_epochs", "10"]
    arguments += ["--num_turns", "2", "--turn_gradient_weights", "1.2", "0.8", "--model_name", "Qwen/Qwen2.5-Coder-7B"]
    assert train_main("magrpo", arguments) == 0
    out, err = capsys.readouterr()
    printed = yaml.safe_load(out)
    assert list(printed)[:3] == ["seed", "environment", "agents"]
    assert {"model", "dataset", "output", "external", "magrpo", "reward_processor"} <= set(printed)
    assert printed["model"]["name"] == "Qwen/Qwen2.5-Coder-7B"
    assert printed["magrpo"]["num_train_epochs"] == 10
    assert printed["magrpo"]["turn_gradient_weights"] == [1.2, 0.8]
    assert "8 tasks x 2 turns = 16 groups per agent; x 4 generations = 64 joint samples" in err
    assert "without GPUs CPU 2 (2 x generator with CPU 0.5" in err
    assert "with GPUs CPU 2 GPU 4 (" in err
    assert to_tree(from_tree(printed, "magrpo")) == printed


@pytest.mark.plugins("planner", "bug_fix")
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.name=bundled:nothing", "model bundled:nothing does not exist"),
        ("dataset.eval_split=test", "has no split 'test'"),
        ("resources.generator.gpus=1", "resources.generator.gpus is 1 and resources.learner.gpus 0"),
        ("model.name=a/b/c", "neither a folder here nor a hub id"),
        ("dataset.type=bugfix", "did you mean bug_fix?"),
        ("dataset.type=humanevall", "unknown dataset.type 'humanevall': did you mean humaneval?"),
        ("dataset.name=none.jsonl", "data file none.jsonl does not exist"),
        ("dataset.name=tasks.tsv", "data files end in .jsonl, .parquet, .json or .csv"),
        ("dataset.name=open ai/humaneval", "neither a data file nor a hub id"),
        ("dataset.train_split=train[3-8]", "split 'train[3-8]' is not of the form"),
        ("sandbox.isolation=none", "sandbox: isolation 'none' runs programs unprotected: it needs allow_unsafe: true"),
        ("sandbox.packages=[numpyy]", "sandbox.packages: numpyy is not installed here"),
        ("sandbox.packages=[numpy.linalg]", "sandbox.packages: 'numpy.linalg' is not an import name"),
        ("sandbox.require=bwrap sandbox.isolation=process", "cannot reach the required 'bwrap'"),
        ("external.mode=expert_edits", "needs external.expert_model"),
        (
            "external.mode=expert_edits external.expert_model=deepseek-coder",
            "set the environment variable DEEPSEEK_API_KEY",
        ),
        ("model.special_tokens={eos_token: <nowhere>}", "not in the vocabulary"),
        ("output.base_dir=/dev/null/runs", "set output.base_dir"),
        ("resources.generator.tensor_parallel=2 resources.learner.gpus=0", "both above 0 or both to 0"),
    ],
)
def test_a_dry_run_makes_all_checks_without_downloads(
    override: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    overrides = override.split() if override.count("=") > 1 else [override]
    overrides += ["resources.learner.gpus=0"] if "generator.gpus" in override else []
    arguments = ["--config", str(CONFIGS / "quickstart.yaml"), "--dry-run", "--override", *overrides]
    assert train_main("magrpo", arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_the_name_and_split_of_a_hub_dataset_are_checked_by_form(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", str(CONFIGS / "mt_magrpo_he_config.yaml"), "--dry-run", "--override"]
    assert train_main("magrpo", [*arguments, "dataset.eval_split=test[:32"]) == 1
    assert "split 'test[:32' is not of the form" in capsys.readouterr().err
    assert train_main("magrpo", [*arguments, "dataset.eval_split=test[:10%]"]) == 0


def test_a_dry_run_checks_a_resumed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(load(CONFIGS / "quickstart.yaml", "magrpo")))
    arguments = ["--resume", str(tmp_path), "--dry-run", "--override"]
    for override, name in (
        ("seed=1", "seed"),
        ("model.name=bundled:smollm2-135m", "models"),
        ("output.run_name=other", "run_name"),
    ):
        assert train_main("magrpo", [*arguments, override]) == 1
        assert f"a resumed run keeps its {name}" in capsys.readouterr().err
    assert train_main("grpo", [*arguments, "seed=1"]) == 1
    assert "is a magrpo run: resume it with magrpo, not grpo" in capsys.readouterr().err
    assert train_main("magrpo", [*arguments, "magrpo.max_steps=1"]) == 0
    assert "1 step, at most 128 joint samples" in capsys.readouterr().err


def test_a_dry_run_prints_the_expert_without_its_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "very-secret")
    arguments = ["--config", str(CONFIGS / "mt_magrpo_he_config.yaml"), "--dry-run", "--override"]
    assert train_main("magrpo", [*arguments, "external.mode=expert_edits", "external.expert_model=deepseek-coder"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("expert: deepseek-coder at api.deepseek.com, with the key in DEEPSEEK_API_KEY\n")
    assert "very-secret" not in out + err


def test_an_error_is_one_line_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", str(CONFIGS / "magrpo_he_config.yaml"), "--override", "magrpo.num_turnz=2", "--dry-run"]
    assert train_main("magrpo", arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.strip() == "error: unknown setting 'magrpo.num_turnz': did you mean 'magrpo.num_turns'?"


def test_an_overlap_of_evaluation_and_training_tasks_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    messages = {}
    for split in ("eval", "train[3:8]"):
        check(load(CONFIGS / "quickstart.yaml", "magrpo", {"dataset.eval_split": split}))
        captured = capsys.readouterr()
        messages[split] = captured.out + captured.err
    assert "held-out" not in messages["eval"]
    assert "5 tasks of train[3:8] are also in train" in messages["train[3:8]"]


@pytest.mark.plugins("solver_tester")
def test_sequential_agents_are_reported_and_exclude_trees(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", str(CONFIGS / "toy_solver_tester.yaml"), "--dry-run"]
    assert train_main("magrpo", arguments) == 0
    assert "agents answer one after another, in 2 rounds: a node has up to 2 times" in capsys.readouterr().err
    for override, message in (
        ("magrpo.handoff=all", "magrpo.handoff all needs agents that answer at the same time"),
        ("magrpo.estimator=remax", "estimator remax replaces completions"),
        ("magrpo.critic=maac", "agents answer one after another: set it to iac"),
    ):
        assert train_main("magrpo", [*arguments, "--override", override, "magrpo.num_turns=1"]) == 1
        assert message in capsys.readouterr().err
