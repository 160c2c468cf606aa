"""Training on real problems: files, metrics, models, and resuming after a crash."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from marl_ray.toy import BASE_PATH, TASKS_PATH
from tests.end_to_end.helpers import HUMANEVAL, ONE_AGENT, QUICK, command, environment, rows, train, without_times
from tests.factories import ROOT

SMALL = ["magrpo.rollout_buffer_size=4", "magrpo.num_generations=8", "magrpo.eval_num_samples=2"]

needs_humaneval = pytest.mark.skipif(not HUMANEVAL.exists(), reason=f"no local copy of HumanEval at {HUMANEVAL}")


REAL = [
    *QUICK,
    *SMALL,
    f"dataset.name={HUMANEVAL}",
    "dataset.type=humaneval",
    "dataset.train_split=test[33:43]",
    "dataset.eval_split=test[:4]",
    "magrpo.max_steps=4",
    "magrpo.save_steps=2",
    "magrpo.estimator=mareinforce",
    "magrpo.eval_num_generations=1",
]
"""Settings of four steps of two turns on HumanEval, from the bundled policy."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with these settings."""
    base = tmp_path_factory.mktemp("runs")
    result = train(*REAL, f"output.base_dir={base}", "output.run_name=he")
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    assert "step 4/4 | reward" in result.stderr
    assert f"Results in {base / 'he'}" in result.stderr
    return base / "he"


@needs_humaneval
def test_metrics_have_their_documented_names(finished: Path) -> None:
    steps = rows(finished, "step")
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    first = steps[0]
    assert first["env_steps"] == 4 * 2 * 8
    expected = {
        "turn_1/reward_mean",
        "turn_2/reward_mean",
        "turn_1/expected_return",
        "agent_0/loss",
        "agent_1/grad_norm",
        "agent_1/weight_version",
        "time/rollout",
        "time/learn",
        "time/sync",
        "time/step",
        "rollout/tokens_per_s",
        "sandbox/executions_per_s",
        "sandbox/pending_max",
        "agent_0/sequences_in_flight_max",
        "agent_1/groups_waiting_max",
        "reward_per_token/critical_path",
        "agent_1/turn_2/credit_variance",
    }
    assert expected <= set(first)
    assert [row["agent_1/weight_version"] for row in steps] == [1, 2, 3, 4]
    assert max(row[f"agent_{a}/logprob_gap"] for row in steps for a in (0, 1)) < 1e-3
    before, after = rows(finished, "eval")
    assert (before["step"], after["step"]) == (0, 4)
    assert {
        "eval/turn_2/tests_passed_rate",
        "eval/turn_1/syntax_ok",
        "eval/turn_2/aux_called",
        "eval/tokens/all",
    } <= set(before)


@needs_humaneval
def test_episodes_are_recorded(finished: Path) -> None:
    episodes = [json.loads(line) for line in (finished / "episodes.jsonl").read_text().splitlines()]
    train_episode = next(e for e in episodes if e["kind"] == "train")
    first, second = train_episode["nodes"]
    assert [(first["turn"], first["path"]), (second["turn"], second["path"])] == [(1, []), (2, first["expanded"])]
    assert train_episode["stops"] == []
    assert len(first["prompts"]) == len(first["responses"]) == 2
    assert len(first["joint_actions"]) == 8
    assert first["joint_actions"][0]["report"]["total"] > 0
    expanded = first["responses"][1][first["expanded"][0]]
    assert expanded.strip().splitlines()[0] in second["prompts"][1] or "previous" in second["prompts"][1].lower()
    text = (finished / "sample_episodes.txt").read_text()
    assert "turn 2: reward" in text
    assert "[agent 0, aux: response]" in text


@needs_humaneval
def test_models_load_and_the_resolved_config_is_stored(finished: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for agent in (0, 1):
        folder = finished / "models" / f"agent_{agent}"
        model = AutoModelForCausalLM.from_pretrained(folder)
        ids = AutoTokenizer.from_pretrained(folder)("def f(x):", return_tensors="pt").input_ids
        assert model(ids).logits.isfinite().all()
    saved = yaml.safe_load((finished / "config.yaml").read_text())
    assert saved["magrpo"]["max_steps"] == 4
    assert saved["magrpo"]["num_agents"] == 2
    assert (finished / "returns.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in (finished / "checkpoints").iterdir()) == ["step_000002", "step_000004"]


@pytest.mark.slow
@needs_humaneval
def test_an_evaluation_reproduces_the_last_evaluation_of_the_training(finished: Path, tmp_path: Path) -> None:
    # The exported models are the served models, and the same code evaluates them.
    arguments = ["eval", "--model", str(finished), "--output", str(tmp_path), "--samples", "1"]
    run = [sys.executable, "-m", "marl_ray", *arguments]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, env=environment(), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "2 tasks, 1 sample each" in done.stdout
    result = json.loads((tmp_path / "evaluation.json").read_text())
    means = {name: estimate["mean"] for name, estimate in result["models"]["he"].items()}
    assert "turn_2/pass@1" in means
    row = rows(finished, "eval")[-1]
    shared = {name: value for name, value in means.items() if f"eval/{name}" in row}
    assert len(shared) > 20
    assert shared == pytest.approx({name: row[f"eval/{name}"] for name in shared})
    tasks = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    assert [(task["model"], task["samples"]) for task in tasks] == [("he", 1)] * 2


def without_process_state(row: dict) -> dict:
    """Return the row without values that depend on the process: a resumed run repeats cached sandbox executions, and
    sends the weights once for all steps that it learns again."""
    suffixes = ("sandbox/executions", "/sent_bytes", "/changed_share")
    return {key: value for key, value in without_times(row).items() if not key.endswith(suffixes)}


@pytest.mark.slow
@needs_humaneval
def test_a_run_whose_driver_was_killed_resumes_with_identical_results(
    finished: Path, tmp_path: Path, children: list[subprocess.Popen]
) -> None:
    killed = subprocess.Popen(
        command(*REAL, f"output.base_dir={tmp_path}", "output.run_name=he"),
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    children.append(killed)
    assert killed.stderr is not None
    lines = list(takewhile(lambda line: not line.startswith("step 2/4"), killed.stderr))
    killed.kill()
    assert killed.wait(timeout=30) == -signal.SIGKILL, lines
    assert 2 <= len(rows(tmp_path / "he", "step")) < 4

    resumed = train("--resume", str(tmp_path / "he"))
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming after step " in resumed.stderr
    expected, actual = rows(finished, "step"), rows(tmp_path / "he", "step")
    assert [without_process_state(row) for row in actual] == [without_process_state(row) for row in expected]
    for agent in ("agent_0", "agent_1"):
        weights = Path("checkpoints", "step_000004", agent, "model.safetensors")
        assert (finished / weights).read_bytes() == (tmp_path / "he" / weights).read_bytes()


@pytest.mark.slow
def test_steps_without_a_gradient_do_not_change_the_policies(tmp_path: Path) -> None:
    settings = ["magrpo.max_new_tokens=1", "magrpo.weight_decay=0.1", "magrpo.max_steps=2"]
    result = train(*QUICK, *SMALL, *ONE_AGENT, *settings, f"output.base_dir={tmp_path}", "output.run_name=r")
    assert result.returncode == 1
    assert "no optimizer step up to step 2 had a gradient" in result.stderr.strip().splitlines()[-1]
    assert "agent 0: prompts go to the model as they are (its tokenizer has no chat template)" in result.stderr
    for step, row in enumerate(rows(tmp_path / "r", "step"), start=1):
        assert row["agent_0/weight_version"] == step
        assert row["agent_0/optimizer_steps"] == row["agent_0/grad_norm"] == 0
        assert "agent_0/logprob_gap" not in row
    state = json.loads((tmp_path / "r" / "checkpoints" / "step_000002" / "trainer.json").read_text())
    assert (state["step"], state["learned"]) == (2, 0)
    before = load_file(BASE_PATH / "model.safetensors")
    after = load_file(tmp_path / "r" / "checkpoints" / "step_000002" / "agent_0" / "model.safetensors")
    assert all(torch.equal(before[name].float(), after[name]) for name in after)


@pytest.mark.slow
def test_two_steps_of_bug_fix_with_adapters(tmp_path: Path) -> None:
    # The bugs are in functions that the bundled policy knows.
    bugs = []
    for row in map(json.loads, TASKS_PATH.read_text().splitlines()[:10]):
        head = row["main_solution"].split("\n")[0]
        argument = head.partition("(")[2].partition(")")[0]
        bodies = {"buggy_solution": f"    return {argument}\n", "canonical_solution": row["canonical_solution"]}
        bugs.append({**row, **{field: f"{head}\n{body}" for field, body in bodies.items()}})
    data = tmp_path / "bugs.jsonl"
    data.write_text("\n".join(map(json.dumps, bugs)))
    settings = [f"dataset.name={data}", "dataset.type=bug_fix", "dataset.train_split=test[:8]"]
    settings += ["dataset.eval_split=test[8:]", "magrpo.max_steps=2", "output.save_final_model=false", "lora.rank=4"]
    result = train(*QUICK, *SMALL, *settings, f"output.base_dir={tmp_path}", "output.run_name=r")
    assert result.returncode == 0, result.stderr
    levels = {f"turn_{turn}/level/{level}" for turn in (1, 2) for level in ("parses", "kept", "fixed", "diagnosis")}
    assert all(levels <= set(row) for row in rows(tmp_path / "r", "step"))
    assert any(row["turn_1/tests_fixed_rate"] > 0 for row in rows(tmp_path / "r", "step"))
    gaps = [row["agent_0/logprob_gap"] for row in rows(tmp_path / "r", "step")]
    assert 0 < max(gaps) < 1e-3, "engines have merged the adapters"
    checkpoint = tmp_path / "r" / "checkpoints" / "step_000002" / "agent_0"
    assert [file.name for file in checkpoint.glob("*.safetensors")] == ["adapter_model.safetensors"]
    episodes = [json.loads(line) for line in (tmp_path / "r" / "episodes.jsonl").read_text().splitlines()]
    first, second = next(e["nodes"] for e in episodes if e["kind"] == "train" and len(e["nodes"]) == 2)
    assert "1: def " in first["prompts"][0]
    assert "1: def " not in first["prompts"][1]
    assert {"report", "passed_before"} <= set(first["joint_actions"][0])
    assert all("tests that failed before: " in prompt or "tests: not run" in prompt for prompt in second["prompts"])
