"""Invalid input ends a run with one line on standard error, a non-zero exit code and no files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marl_ray.cli.train import train_main
from tests.end_to_end.helpers import ONE_AGENT, QUICK, train

TASK = {"task_id": "t/0", "prompt": "def f(x):\n", "entry_point": "f", "test": "def check(c):\n    assert c(1) == 1\n"}


def write(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


CASES = {
    "unknown key": (["magrpo.learning_rat=1"], "did you mean 'magrpo.learning_rate'"),
    "wrong type": (["magrpo.num_turns=many"], "should be a whole number"),
    "weights of the wrong length": (["magrpo.turn_gradient_weights=[1.0]"], "1 value for 2 turns"),
    "one generation": (["magrpo.num_generations=1"], "set it to 2 or more"),
    "contradicting numbers of agents": (["agents=[a,b,c]", "magrpo.num_agents=2"], "agents names 3 models"),
    "no such file": (["dataset.name=none.jsonl", "dataset.type=humaneval"], "none.jsonl"),
    "no such split": (["dataset.train_split=trian"], "train"),
    "empty slice": (["dataset.train_split=train[0:0]"], "holds no rows"),
    "no such model folder": (["model.name=./nowhere"], "there is no such folder"),
    "no such bundled model": (["model.name=bundled:other"], "bundled models: bundled:toy-base"),
    "expert without a key": (["external.mode=expert_edits", "external.expert_model=gpt-x"], "OPENAI_API_KEY"),
    "no isolation": (["sandbox.isolation=none"], "it needs allow_unsafe: true"),
    "missing isolation level": (["sandbox.require=bwrap"], "bwrap: bubblewrap is not installed"),
    "tensor parallelism without GPUs": (["resources.generator.tensor_parallel=2"], "there are no GPUs: set it to 1"),
    "run name outside the base folder": (["output.run_name=../elsewhere"], "below output.base_dir"),
    "output folder": (["output.base_dir=/dev/null/runs"], "set output.base_dir"),
}


@pytest.mark.parametrize("case", CASES)
def test_invalid_settings_are_reported_before_anything_starts(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap
    overrides, message = CASES[case]
    runs = tmp_path / "runs"
    assert train_main("magrpo", [*QUICK, f"output.base_dir={runs}", *overrides]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert not runs.exists()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**TASK, "test": ""}, "t/0"),
        ({**TASK, "entry_point": ""}, "t/0"),
        ({**TASK, "test": "def check(c):\n    assert ("}, "t/0"),
    ],
)
def test_an_invalid_task_is_named(row: dict, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "tasks.jsonl", row)
    overrides = [f"dataset.name={data}", "dataset.type=humaneval", "dataset.train_split=test"]
    assert train_main("magrpo", [*QUICK, f"output.base_dir={tmp_path / 'runs'}", *overrides]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.slow
def test_missing_resources_are_reported_before_any_actor_starts(tmp_path: Path) -> None:
    result = train(*QUICK, f"output.base_dir={tmp_path / 'runs'}", "resources.generator.cpus=500", timeout=180)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("error: the cluster cannot place this run: asked for CPU 1001")
    assert "resources.generator.cpus" in last
    assert not (tmp_path / "runs").exists() or list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_prompts_that_are_all_too_long_end_the_run(tmp_path: Path) -> None:
    overrides = [f"output.base_dir={tmp_path / 'runs'}", "model.max_length=66", "magrpo.max_new_tokens=64"]
    result = train(*QUICK, *ONE_AGENT, *overrides)
    assert result.returncode == 1
    assert "prompts are longer than the 2 tokens" in result.stderr.strip().splitlines()[-1]


BROKEN = """
from marl_ray.environments.code_generation import CodeGeneration

class Broken(CodeGeneration):
    def attempt(self, task, responses, last):
        return 1 / 0
"""


@pytest.mark.slow
def test_the_traceback_of_a_bug_is_printed_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_plugin.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    settings = ["environment=broken_plugin:Broken", f"output.base_dir={tmp_path}", "output.run_name=r"]
    result = train(*QUICK, *ONE_AGENT, *settings)
    assert result.returncode == 1
    stored = tmp_path / "r" / "error.txt"
    *_, error, last = result.stderr.strip().splitlines()
    assert error == "ZeroDivisionError: division by zero"
    assert last == f"Unexpected error. Please report it and attach this file: {stored}"
    assert "return 1 / 0" in stored.read_text()
    assert "Traceback (most recent call last)" in result.stderr
