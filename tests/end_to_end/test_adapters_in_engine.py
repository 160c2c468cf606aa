"""Runs whose engines have the base model and receive adapters only, beside the same runs with merged weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.helpers import QUICK, rows, train, without_times

pytest.importorskip("peft")
pytestmark = pytest.mark.slow

SETTINGS = [
    *("magrpo.rollout_buffer_size=4", "magrpo.num_generations=8", "magrpo.eval_num_samples=2", "magrpo.max_steps=3"),
    *("magrpo.learning_rate=1e-3", "lora.rank=8", "output.save_final_model=false"),
]


@pytest.mark.nightly
def test_a_run_with_adapters_in_its_engines_is_the_run_with_merged_weights(tmp_path: Path) -> None:
    steps = {}
    for name, in_engine in (("served", "true"), ("merged", "false")):
        folder = [f"output.base_dir={tmp_path}", f"output.run_name={name}"]
        result = train(*QUICK, *SETTINGS, f"lora.in_engine={in_engine}", *folder)
        assert result.returncode == 0, result.stderr
        assert ("(adapters only)" in result.stderr) == (name == "served"), result.stderr
        steps[name] = rows(tmp_path / name, "step")
    for served, merged in zip(steps["served"], steps["merged"], strict=True):
        for agent in ("agent_0", "agent_1"):
            assert served[f"{agent}/logprob_gap"] < 1e-5
            assert served[f"{agent}/sent_bytes"] < 0.1 * merged[f"{agent}/sent_bytes"]
        for metric, value in without_times(merged).items():
            if metric.endswith(("reward_mean", "grad_norm", "loss")):
                assert served[metric] == pytest.approx(value, rel=1e-3, abs=1e-6), metric


@pytest.mark.nightly
def test_policies_of_one_learner_process_with_sleeping_engines_or_not(tmp_path: Path) -> None:
    for name, setting in (("shared", "lora.share_base=true"), ("colocated", "resources.colocate=turns")):
        folder = [f"output.base_dir={tmp_path}", f"output.run_name={name}"]
        result = train(*QUICK, *SETTINGS, "lora.in_engine=true", setting, *folder)
        assert result.returncode == 0, result.stderr
        gaps = [row[f"agent_{agent}/logprob_gap"] for row in rows(tmp_path / name, "step") for agent in range(2)]
        assert max(gaps) < 1e-5, "each engine has the adapter of its policy"


@pytest.mark.nightly
def test_policies_of_one_engine_have_the_results_of_separate_engines(tmp_path: Path) -> None:
    steps = {}
    for name, settings in (
        ("one", ["lora.share_engine=true", "lora.share_base=true", "resources.colocate=resident"]),
        ("separate", []),
    ):
        folder = [f"output.base_dir={tmp_path}", f"output.run_name={name}"]
        result = train(*QUICK, *SETTINGS, "lora.in_engine=true", *settings, *folder)
        assert result.returncode == 0, result.stderr
        assert ("has one engine for agent 0, agent 1" in result.stderr) == (name == "one"), result.stderr
        steps[name] = rows(tmp_path / name, "step")
    for one, separate in zip(steps["one"], steps["separate"], strict=True):
        for metric, value in without_times(separate).items():
            if metric.endswith(("reward_mean", "grad_norm", "loss")):
                assert one[metric] == pytest.approx(value, rel=1e-3, abs=1e-6), metric
