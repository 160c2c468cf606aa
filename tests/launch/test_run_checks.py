"""Checks of a config that need its models."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_ray.config import load
from marl_ray.core.errors import UserError
from marl_ray.launch.run_checks import check
from tests.other_model import other_model

CRITIC = Path(__file__).parents[2] / "configs" / "toy_critic.yaml"


def test_a_central_critic_reads_one_tokenizers_ids(tmp_path: Path) -> None:
    other = str(other_model(tmp_path / "other"))
    of_two = {"agents": [{}, other], "output.base_dir": str(tmp_path)}
    with pytest.raises(UserError, match=r"maac reads the prompts of all agents, and bundled:toy-base and .*/other"):
        check(load(CRITIC, "magrpo", of_two | {"magrpo.critic": "maac"}))
    assert check(load(CRITIC, "magrpo", of_two))
    assert check(load(CRITIC, "magrpo", {"magrpo.critic": "maac", "output.base_dir": str(tmp_path)}))
