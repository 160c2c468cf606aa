"""Three agents with two policies: two agents share one, the third has a model of another family with its own tokenizer
and settings. Each policy has a critic on its own layers, so that the batch log and replay cover critics too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

from marl_ray.toy import BASE_PATH
from tests.end_to_end.helpers import QUICK, environment, rows, train, without_times
from tests.factories import ROOT
from tests.other_model import SIZE, other_model

pytestmark = pytest.mark.slow

SHARED, OWN = "policy_0", "agent_1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two steps and two turns, with every joint action expanded."""
    base = tmp_path_factory.mktemp("runs")
    other_model(base / "other")
    result = train_two_policies(base, "r")
    assert "policy 0 (agents 0, 2): one learner, one update from the groups of all" in result.stderr
    assert "starting 2 generators, 2 learners" in result.stderr
    assert "loss: of policy 0, agent 1" in result.stderr
    return base / "r"


def train_two_policies(base: Path, name: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    other = base / "other"
    result = train(
        *QUICK,
        f"agents=[{{}}, {{name: {other}, learning_rate: 1e-3, temperature: 1.3, max_new_tokens: 24}}, {{policy: 0}}]",
        "magrpo.num_agents=3",
        "magrpo.critic=iac",
        "magrpo.handoff=all",
        "magrpo.num_generations=2",
        "magrpo.rollout_buffer_size=4",
        "magrpo.max_steps=2",
        "magrpo.max_logprob_gap=1e-3",
        "dataset.eval_split=null",
        "output.keep_batches=true",
        f"output.base_dir={base}",
        f"output.run_name={name}",
        *overrides,
    )
    assert result.returncode == 0, result.stderr
    return result


def test_metrics_are_per_policy_and_per_agent(run: Path) -> None:
    first, second = rows(run, "step")
    names = {key.partition("/")[0] for key in first if key.endswith("/loss")}
    assert names == {SHARED, OWN}
    assert {f"agent_{agent}/staleness_max" for agent in range(3)} <= set(first)
    assert {f"time/{SHARED}/learn", f"time/{OWN}/learn"} <= set(first)
    for row in (first, second):
        for policy in (SHARED, OWN):
            assert row[f"{policy}/logprob_gap"] < 1e-3
            assert row[f"{policy}/optimizer_steps"] == 1
            assert row[f"{policy}/weight_version"] == row["step"]
            assert row[f"{policy}/critic_loss"] > 0
            assert (row[f"{policy}/value_mean"] == 0) == (row is first), "a new value head returns 0"
    assert first[f"{OWN}/learning_rate"] == 2 * first[f"{SHARED}/learning_rate"] == 1e-3


def test_each_policy_is_stored_once_and_has_changed(run: Path) -> None:
    for folder in (run / "models", run / "checkpoints" / "step_000002"):
        assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [OWN, SHARED]
        has_critic = [(folder / name / "critic.pt").exists() for name in (OWN, SHARED)]
        assert has_critic == [folder.parent.name == "checkpoints"] * 2
    trained = {name: run / "models" / name for name in (SHARED, OWN)}
    for name, base in ((SHARED, BASE_PATH), (OWN, run.parent / "other")):
        before, after = (load_file(folder / "model.safetensors") for folder in (base, trained[name]))
        assert before.keys() == after.keys()
        assert any(not torch.equal(before[key], after[key]) for key in before)
    assert AutoConfig.from_pretrained(trained[OWN]).model_type == "llama"
    assert len(AutoTokenizer.from_pretrained(trained[OWN])) == SIZE
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert saved["agents"][2] == {"policy": 0}


def test_a_replay_gives_identical_metrics(run: Path) -> None:
    arguments = [sys.executable, "-m", "marl_ray", "replay", str(run)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, env=environment(), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for line in (
        "policy 0 (agents 0, 2), from its base model",
        "policy 0: 2 of 2 steps have recorded metrics; metrics are bit-",
    ):
        assert line in done.stdout
    assert "agent 1: 2 of 2 steps have recorded metrics; metrics are bit-identical" in done.stdout


@pytest.mark.parametrize("residency", [pytest.param("kv", marks=pytest.mark.nightly), "stream", "turns"])
def test_a_device_used_in_turns_gives_identical_results(run: Path, residency: str) -> None:
    done = train_two_policies(run.parent, residency, f"resources.colocate={residency}")
    assert "Peak memory of device 0: " in done.stderr
    steps = rows(run.parent / residency, "step")
    assert [without_memory(row) for row in steps] == [without_memory(row) for row in rows(run, "step")]
    phases = [f"memory/device_0/{phase}" for phase in ("play", "asleep", "learn", "awake")]
    for row in steps:
        rollout, asleep, training, awake = (row[phase] for phase in phases)
        # The two engines have a KV cache of 256 MB each.
        assert min(rollout, awake) > asleep + 450
        assert asleep < training < rollout
    assert_same_weights(run, run.parent / residency)


def test_actors_that_stay_on_a_shared_device_give_identical_results(run: Path) -> None:
    done = train_two_policies(run.parent, "decided", "resources.colocate=true")
    assert "resources.colocate: resident, because it needs " in done.stderr
    assert yaml.safe_load((run.parent / "decided" / "config.yaml").read_text())["resources"]["colocate"] == "resident"
    assert [without_times(row) for row in rows(run.parent / "decided", "step")] == [
        without_times(row) for row in rows(run, "step")
    ]
    assert_same_weights(run, run.parent / "decided")


def assert_same_weights(first: Path, second: Path) -> None:
    for policy in (SHARED, OWN):
        weights = Path("checkpoints", "step_000002", policy, "model.safetensors")
        assert (first / weights).read_bytes() == (second / weights).read_bytes()


def without_memory(row: dict) -> dict:
    """Return the row without times and memory."""
    return {key: value for key, value in without_times(row).items() if not key.startswith("memory/")}
