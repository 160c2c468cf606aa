"""Run folders with trained models, without a training."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from marl_ray.config import load, to_yaml
from marl_ray.learning.arguments import learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.storage.run_folder import RunFolder
from tests.factories import QUICKSTART


def make_run(path: Path, change: float = 0.01, **overrides: object) -> RunFolder:
    """Return a run folder with exported models whose weights are the base model's plus `change`."""
    config = load(QUICKSTART, "magrpo", dict(overrides))
    run = RunFolder(path)
    run.make()
    run.write_config(to_yaml(config), 0)
    for policy in config.policies:
        learner = Learner(*learner_arguments(config, policy, 1))
        with torch.no_grad():
            for parameter in learner.policy.parameters():
                if parameter.requires_grad:
                    parameter += change
        learner.export(str(run.model(policy)), [])
    row = {
        "step": 3,
        "env_steps": 24,
        "eval/episodes": 4,
        "eval/turn_1/reward_mean": 3.5,
        "eval/turn_2/all_passed": 0.75,
    }
    train_row = {"step": 3, "env_steps": 24, "turn_1/reward_mean": 3.25}
    run.metrics.write_text("".join(json.dumps(one) + "\n" for one in (train_row, row)))
    return run
