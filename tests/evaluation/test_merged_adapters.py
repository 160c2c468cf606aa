"""Adapters in the places of models: merged for as long as an evaluation takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from marl_ray.config import load, to_yaml
from marl_ray.evaluation.evaluate import EvaluationRequest, check
from marl_ray.evaluation.merged_adapters import merged
from marl_ray.learning.arguments import local_learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.models.names import check_model
from marl_ray.storage.run_folder import RunFolder

pytest.importorskip("peft")

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def test_adapters_are_merged_while_they_play(tmp_path: Path) -> None:
    config = load(QUICKSTART, "magrpo", {"lora.rank": 2, "lora.export": "adapter"})
    run = RunFolder(tmp_path / "one")
    run.make()
    run.write_config(to_yaml(config), 0)
    for policy in config.policies:
        Learner(*local_learner_arguments(config, policy, 1)).export(str(run.model(policy)), [])
    asked = check(
        config, EvaluationRequest(["base", str(run)], None, 1, [1], "parallel", True, tmp_path / "out", False)
    )
    assert sorted(asked.adapters) == [str(run.models / name) for name in ("agent_0", "agent_1")]
    there = set(run.path.iterdir())
    with merged(asked) as playing:
        *_, trained = playing.evaluated_models
        wholes = [Path(agent.name) for agent in trained.config.agents]
        assert [place.name for place in wholes] == ["agent_0", "agent_1"]
        assert {place.parent.parent for place in wholes} == {run.path}, "where the run's models are seen"
        for place in wholes:
            check_model(str(place), config.model)
            assert load_file(place / "model.safetensors")
        first, second = playing.evaluated_models[1].config.agents
        assert (first.name, second.name) == ("bundled:toy-base", str(wholes[1]))
        assert asked.evaluated_models[-1].config.agents[0].name == str(run.models / "agent_0"), "as records name it"
    assert set(run.path.iterdir()) == there
