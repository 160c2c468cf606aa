"""One training step of each environment that executes no programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marl_ray.core.errors import UserError
from marl_ray.models.names import SMOLLM2, resolve_model
from tests.end_to_end.helpers import rows, train
from tests.factories import ROOT

pytestmark = pytest.mark.slow

SMALL = ["magrpo.rollout_buffer_size=2", "magrpo.num_generations=4", "magrpo.max_steps=1", "magrpo.num_train_epochs=1"]


def trained(folder: Path, config: str, *overrides: str) -> tuple[dict, list[dict]]:
    """Train one step, and return its metrics and episodes."""
    output = ["output.save_final_model=false", f"output.base_dir={folder}", "output.run_name=r"]
    evaluation = ["dataset.eval_split=eval[:2]", "magrpo.eval_num_generations=1"]
    arguments = ["--config", str(ROOT / "configs" / config), "--override", *SMALL, *output, *evaluation, *overrides]
    result = train(*arguments)
    assert result.returncode == 0, result.stderr
    episodes = (folder / "r" / "episodes.jsonl").read_text().splitlines()
    return rows(folder / "r", "step")[0], [json.loads(line) for line in episodes]


def test_a_secret_grid(tmp_path: Path) -> None:
    step, episodes = trained(tmp_path, "toy_grid.yaml")
    assert {"turn_3/level/cells", "turn_3/cells_right", "turn_1/all_passed"} <= set(step)
    assert step["turn_1/cells_filled"] > 0.9
    later = [node["prompts"][1] for one in episodes for node in one["nodes"] if node["turn"] == 2]
    assert all("\nFeedback:\nrow 1: " in prompt and prompt.endswith("Write row 2 again.\n") for prompt in later)


def test_a_private_grid(tmp_path: Path) -> None:
    step, episodes = trained(tmp_path, "toy_grid_private.yaml")
    assert step["env_steps"] == 2 * (4 + 4 * 4)  # handoff: all
    first = episodes[0]["nodes"][0]["prompts"]
    assert "Row 2 should be: " in first[0]
    assert "Row 1 should be: " in first[1]


@pytest.mark.parametrize(
    ("kind", "dataset", "tokens", "level"),
    [
        ("tldr", "posts", 24, "structure"),
        pytest.param("arxiv", "abstracts", 400, "jaccard", marks=pytest.mark.nightly),
    ],
)
def test_writing(tmp_path: Path, kind: str, dataset: str, tokens: int, level: str) -> None:
    lengths = [f"magrpo.min_new_tokens={tokens}", f"magrpo.max_new_tokens={tokens}"]
    data = [f"dataset.name=bundled:{dataset}", "dataset.train_split=train", *lengths]
    model = ["model.name=bundled:toy-base", "model.max_length=1024", "model.model_kwargs.torch_dtype=float32"]
    step, _ = trained(tmp_path, f"magrpo_{kind}_config.yaml", *data, *model)
    assert {f"turn_1/level/{level}", "turn_1/length_ratio", "turn_1/transition_kinds"} <= set(step)


@pytest.mark.real_model
@pytest.mark.nightly
def test_tags_with_a_real_model(tmp_path: Path) -> None:
    try:
        resolve_model(SMOLLM2)
    except UserError as error:
        pytest.skip(str(error))
    step, episodes = trained(tmp_path, "magrpo_tags_smollm2.yaml")
    assert step["turn_1/different_words"] > 0
    assert 0 <= step["turn_1/position_2"] <= 1
    assert step["agent_0/optimizer_steps"] == step["agent_1/optimizer_steps"] == 1
    assert episodes[0]["nodes"][0]["prompts"][0].endswith("\nTags of the first reader:")
