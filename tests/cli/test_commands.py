"""Commands and flags: light --help, one-line errors and exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from marl_ray.cli.main import all_commands, main
from marl_ray.cli.parser import exit_code_of
from marl_ray.cli.train import train_main
from marl_ray.core.errors import UserError
from tests.factories import QUICKSTART

HEAVY = ("torch", "ray", "vllm", "transformers", "matplotlib", "datasets", "yaml", "numpy", "pydantic")
IMPORTED = "import sys; from marl_ray.cli.main import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
IMPORTED += "print('imported:', *sorted(sys.modules))"


@pytest.mark.parametrize("command", [[], *([name] for name in all_commands())])
def test_help_imports_no_heavy_packages(command: list[str]) -> None:
    arguments = [sys.executable, "-c", IMPORTED, *command, "--help"]
    text = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True).stdout
    shown, _, imported = text.partition("imported: ")
    assert shown.startswith("usage: marl-ray")
    assert set(HEAVY) & set(imported.split()) == set()


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(f"  {name} " in out and command.summary in out for name, command in all_commands().items())


@pytest.mark.plugins("planner", "report")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "give a command: train, eval, rollout, score, scale, replay, explain, completion, sandbox",
        ),
        (["trian"], "unknown command trian: did you mean train?"),
        (["quux"], "unknown command quux"),
        (["--verson"], "unknown flag --verson: did you mean --version?"),
        (["train", "magrop"], "unknown algorithm magrop: did you mean magrpo?"),
        (["plan", "ppo"], "unknown algorithm ppo: there are magrpo and grpo"),
        (["train", "a.yaml"], "give the file as --config a.yaml"),
        (["train", "magrpo", "--confg=a.yaml"], "unknown flag --confg: did you mean --config?"),
        (["train", "magrpo", "--config", "a.yaml", "--overide", "a=1"], "unknown flag --overide: did you mean"),
        (["train", "magrpo", "a.yaml"], "unknown argument a.yaml"),
        (["plan", "magrpo", "--num_turns", "two"], "--num_turns: invalid int value: 'two'"),
        (["report"], "the following arguments are required: RUN_DIR"),
        (["scale", "runs/one", "--agent", "1"], "the following arguments are required: --replicas"),
        (["scale", "runs/one", "--agent", "1", "--replicas", "two"], "--replicas: invalid int value: 'two'"),
        (["replay", "runs/one", "--steps", "40-60"], "--steps: '40-60' is not of the form FROM:TO, as in 40:60"),
        (["explain", "seed", "--algoritm", "grpo"], "unknown flag --algoritm: did you mean --algorithm?"),
    ],
)
def test_a_wrong_argument_is_a_one_line_error_with_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.endswith("(see --help)\n")
    assert err.count("\n") == 1


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    def mistake() -> None:
        raise UserError("one\n  thing")

    def stopped() -> None:
        raise KeyboardInterrupt

    def bug() -> None:
        raise ValueError("a bug")

    assert (exit_code_of(mistake), exit_code_of(stopped), exit_code_of(lambda: None)) == (1, 130, 0)
    assert capsys.readouterr() == ("", "error: one thing\n")
    with pytest.raises(ValueError, match="a bug"):
        exit_code_of(bug)


@pytest.mark.plugins("planner", "report")
def test_train_and_plan_need_a_config_or_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert train_main("magrpo", []) == 1
    assert "give --config FILE, or --resume RUN_DIR" in capsys.readouterr().err
    assert main(["plan", "grpo", "--config", "a.yaml", "--resume", str(tmp_path)]) == 1
    assert "leave out --config" in capsys.readouterr().err
    assert main(["plan", "grpo", "--resume", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path} is not a run folder: config.yaml is missing\n"


@pytest.mark.parametrize("section", ["magrpo", "grpo"])
def test_a_file_names_its_algorithm(section: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(f"environment: missing\n{section}: {{max_steps: 3}}\n", encoding="utf-8")
    assert main(["train", "--config", str(file), "--dry-run", "--override", f"{section}.max_steps=many"]) == 1
    assert f"{section}.max_steps should be" in capsys.readouterr().err
    other = "grpo" if section == "magrpo" else "magrpo"
    assert main(["train", other, "--config", str(file)]) == 1
    assert f"has a section '{section}'" in capsys.readouterr().err


@pytest.mark.plugins("planner", "report")
def test_a_report_needs_a_run_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path} is not a run folder: config.yaml is missing\n"


def test_explain_prints_settings_and_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "grpo.num_turns"]) == 0
    assert capsys.readouterr().out.startswith("grpo.num_turns: a whole number")
    assert main(["explain"]) == 0
    assert "sandbox: Execution of programs written by models." in capsys.readouterr().out.splitlines()
    assert main(["explain", "magrpo"]) == 0
    assert "\nmagrpo.num_turns [1]: Turns per episode.\n" in capsys.readouterr().out
    assert main(["explain", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["seed"]["default"] == 42
    assert main(["explain", "num_turns", "--algorithm", "grpo"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: unknown setting 'num_turns': did you mean 'grpo.num_turns'?\n")


@pytest.mark.parametrize(
    ("agent", "replicas", "message"),
    [
        ("2", "3", "there is no agent 2: this run has agents 0 to 1"),
        ("1", "0", "0 replicas: an agent has 1 to 10000 generators"),
        ("1", "3", "is not being run: only a run in progress can be scaled"),
    ],
)
def test_an_impossible_scale_request_is_rejected_at_once(
    agent: str, replicas: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(QUICKSTART, tmp_path / "config.yaml")
    assert main(["scale", str(tmp_path), "--agent", agent, "--replicas", replicas]) == 1
    assert message in capsys.readouterr().err
