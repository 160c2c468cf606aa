"""A learner, which is a process of its own, finds the names of the plug-ins that a config lists."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from marl_ray import registry
from marl_ray.learning.arguments import learner_arguments
from tests.factories import quickstart_config

OWN = """
from marl_ray.learning.losses.policy_gradient import PolicyGradient
from marl_ray.registry import PlugIn

class Own(PolicyGradient):
    pass

PLUGIN = PlugIn(names={"loss": {"own": "own_loss:Own"}})
"""
LEARNER = """
import pickle, sys
from marl_ray.learning import LOSSES
from marl_ray.learning.learner import Learner

Learner(*pickle.load(sys.stdin.buffer))
print(LOSSES.get("own").__name__)
"""


def test_a_learner_knows_a_loss_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_loss.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_named", [])
    config = quickstart_config(plugins=["own_loss"], **{"magrpo.loss": "own"})
    arguments = pickle.dumps(learner_arguments(config, config.policies[0], 1))
    done = subprocess.run([sys.executable, "-c", LEARNER], input=arguments, capture_output=True, cwd=tmp_path)
    assert done.stdout == b"Own\n", done.stderr
