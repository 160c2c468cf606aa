"""LoRA adapters that are merged for the time of an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from marl_ray.config import load, to_yaml
from marl_ray.evaluation.evaluate import plan_evaluation
from marl_ray.evaluation.model_sources import merged_adapters
from marl_ray.evaluation.requests import EvaluationRequest
from marl_ray.learning.arguments import learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.models.names import check_model
from marl_ray.storage.run_folder import RunFolder

pytest.importorskip("peft")

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def test_adapters_are_merged_during_an_evaluation_only(tmp_path: Path) -> None:
    config = load(QUICKSTART, "magrpo", {"lora.rank": 2, "lora.export": "adapter"})
    run = RunFolder(tmp_path / "one")
    run.make()
    run.write_config(to_yaml(config), 0)
    for policy in config.policies:
        Learner(*learner_arguments(config, policy, 1)).export(str(run.model(policy)), [])
    plan = plan_evaluation(
        config, EvaluationRequest(models=["base", str(run)], samples=1, folder=tmp_path / "out", swap=True)
    )
    assert sorted(plan.adapters) == [str(run.models / name) for name in ("agent_0", "agent_1")]
    before = set(run.path.iterdir())
    with merged_adapters(plan.models, plan.adapters, config.model) as merged:
        *_, trained = merged
        folders = [Path(agent.name) for agent in trained.config.agents]
        assert [folder.name for folder in folders] == ["agent_0", "agent_1"]
        assert {folder.parent.parent for folder in folders} == {run.path}, "on a path that the engines share"
        for folder in folders:
            check_model(str(folder), config.model)
            assert load_file(folder / "model.safetensors")
        first, second = merged[1].config.agents
        assert (first.name, second.name) == ("bundled:toy-base", str(folders[1]))
        assert plan.models[-1].config.agents[0].name == str(run.models / "agent_0"), "records name the adapter"
    assert set(run.path.iterdir()) == before
