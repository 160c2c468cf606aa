"""An environment of the package verifiers, played by its own Python through the gateway. MARL_RAY_VERIFIERS_PYTHON is
the interpreter of an environment with verifiers 0.4, which cannot share one with this package."""

from __future__ import annotations

import asyncio
import os

import pytest

from marl_ray.core.episode import Task
from marl_ray.toy import BASE_PATH
from tests.factories import ROOT
from tests.plugins.gateway.scripted_agents import ScriptedAgent, gateway_config, play

PYTHON = os.environ.get("MARL_RAY_VERIFIERS_PYTHON")


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="MARL_RAY_VERIFIERS_PYTHON names no interpreter with verifiers")
def test_two_policies_play_an_environment_of_verifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = ROOT / "docs" / "examples"
    monkeypatch.setenv("PYTHONPATH", str(examples))
    command = f"{PYTHON} {examples / 'verifiers_program.py'} --taskset agreeing --task {{task_file}}"
    config = gateway_config(command=command, roles=["left", "right"], pass_variables=["PYTHONPATH"], timeout_s=600)
    agents = [ScriptedAgent(str(BASE_PATH), lambda *_: "I say 7"), ScriptedAgent(str(BASE_PATH), lambda *_: "many")]
    (episode,) = asyncio.run(play(config, agents, Task("1", "1", {})))
    assert episode.root is not None, episode.stops
    assert [action.rewards for action in episode.root.joint_actions] == [(0.5, 0.0)] * 2
    assert episode.root.prompts[0] == [{"role": "user", "content": "Name a number from 0 to 99."}]
