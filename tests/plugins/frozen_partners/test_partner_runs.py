"""Two agents that learn in turns, with a frozen partner for one of them: metrics, weights, replay and a resumed run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from marl_ray.toy import MODELS
from tests.end_to_end.helpers import QUICK, environment, rows, train, without_times
from tests.factories import ROOT

pytestmark = pytest.mark.slow


def train_with_partner(base: Path, name: str, steps: int) -> None:
    result = train(
        *QUICK,
        "environment=frozen_partners",
        "partners.environment=code_generation",
        "partners.stand_in=[1]",
        "agents=[{}, {}, {learning_rate: 0}]",
        "magrpo.num_agents=3",
        "magrpo.learn_in_turns=1",
        "magrpo.lr_scheduler=constant",
        "magrpo.num_generations=4",
        "magrpo.rollout_buffer_size=2",
        f"magrpo.max_steps={steps}",
        "magrpo.save_steps=2",
        "dataset.eval_split=null",
        "resources.generator.cpus=0.25",
        "output.keep_batches=true",
        f"output.base_dir={base}",
        f"output.run_name={name}",
    )
    assert result.returncode == 0, result.stderr
    assert "learn_in_turns: 2 policies learn alternately, 1 step each" in result.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three steps."""
    base = tmp_path_factory.mktemp("runs")
    train_with_partner(base, "whole", 3)
    return base / "whole"


def weights(run: Path, agent: int) -> dict[str, torch.Tensor]:
    return load_file(run / "models" / f"agent_{agent}" / "model.safetensors")


def test_policies_alternate_and_the_partner_stays_as_it_was(run: Path) -> None:
    found = rows(run, "step")
    assert [[row[f"agent_{agent}/optimizer_steps"] for agent in range(3)] for row in found] == [
        [1, 0, 0],
        [0, 1, 0],
        [1, 0, 0],
    ]
    assert all(row[f"agent_{agent}/weight_version"] == row["step"] for row in found for agent in range(3))
    base = load_file(MODELS["bundled:toy-base"] / "model.safetensors")
    changed = [any(not torch.equal(base[name], w) for name, w in weights(run, agent).items()) for agent in range(3)]
    assert changed == [True, True, False]


def test_rewards_are_per_agent_and_the_partners_reward_is_a_metric(run: Path) -> None:
    for row in rows(run, "step"):
        own, partner = row["turn_1/reward_mean"], row["turn_1/partner_reward"]
        of_agents = [row[f"agent_{agent}/turn_1/reward_mean"] for agent in range(3)]
        assert of_agents == pytest.approx([0.5 * own + 0.5 * partner, own, 0.0])


def test_the_updates_can_be_replayed(run: Path) -> None:
    arguments = [sys.executable, "-m", "marl_ray", "replay", str(run)]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=300, env=environment(), cwd=ROOT)
    assert result.returncode == 0, result.stderr + result.stdout
    assert result.stdout.count("3 of 3 steps have recorded metrics; metrics are bit-identical") == 3


@pytest.mark.nightly
def test_a_resumed_run_goes_on_with_the_same_turns(run: Path) -> None:
    train_with_partner(run.parent, "parts", 2)
    parts = run.parent / "parts"
    resumed = train("--resume", str(parts), "--override", "magrpo.max_steps=3")
    assert resumed.returncode == 0, resumed.stderr
    assert list(map(without_times, rows(parts, "step"))) == list(map(without_times, rows(run, "step")))
    for agent in range(3):
        assert all(torch.equal(one, weights(run, agent)[name]) for name, one in weights(parts, agent).items())
