"""`bundled:grid` and its base policy: reproducible data, and useful behaviours that are likely but not certain."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer, Qwen2ForCausalLM

from marl_ray.config import ExternalConfig
from marl_ray.core.episode import Task
from marl_ray.data.loading import load_rows, load_tasks
from marl_ray.external.transition import Transition
from marl_ray.plugins.grid import GRID_BASE_PATH
from marl_ray.plugins.grid.attempt import FilledGrid
from marl_ray.plugins.grid.environment import LetterGrid, PrivateGrid
from tools.toy.make_base import sample
from tools.toy.make_grid import CLEAN, NOISY, SPLITS, grid_rows, scenes


def test_the_bundled_grids_are_reproducible_and_disjoint() -> None:
    rows = [row for split in SPLITS for row in load_rows("bundled:grid", split)]
    assert rows == grid_rows()
    assert len({tuple(row["target"]) for row in rows}) == len(rows)


def test_without_telling_no_first_answer_depends_on_the_row_in_its_prompt() -> None:
    answers, told = 0, 0
    for scene in scenes(4000, 4, replace(CLEAN, tell=0.0), random.Random(2)):
        known = re.search(r"should be: (.*)", scene.prompt)
        if known is None or "Write rows" in scene.prompt:
            continue
        answers += len(scene.responses)
        told += sum(response == known[1] for response in scene.responses)
    assert answers > 3000
    assert 0.02 < told / answers < 0.06  # chance: 1 / 27


def test_clean_demonstrations_keep_right_letters_and_replace_all_others() -> None:
    for scene in scenes(60, 2, CLEAN, random.Random(1)):
        if "right" not in scene.prompt or "Write row 1 again." not in scene.prompt:
            continue
        marked = next((line for line in scene.prompt.splitlines() if line.startswith("row 1: ")), None)
        if marked is None:
            continue
        for response in scene.responses:
            for letter, mark in zip(response.split(), marked.removeprefix("row 1: ").split(", "), strict=True):
                assert (letter == mark[0]) is mark.endswith("right")
    assert len(scenes(60, 2, NOISY, random.Random(1))) >= 60


def next_attempts(environment: LetterGrid, tasks: Sequence[Task]) -> list[tuple[FilledGrid, FilledGrid]]:
    """Return the attempts of two turns of the base policy in all roles."""
    torch.manual_seed(0)
    model, tokenizer = Qwen2ForCausalLM.from_pretrained(GRID_BASE_PATH), AutoTokenizer.from_pretrained(GRID_BASE_PATH)

    def answered(prompts: Sequence[Sequence[str]]) -> list[FilledGrid]:
        texts = sample(model, tokenizer, [prompt for row in prompts for prompt in row], 12)
        pairs = zip(texts[::2], texts[1::2], strict=True)
        return [environment.attempt(task, pair, last=False) for task, pair in zip(tasks, pairs, strict=True)]

    firsts = [environment.first_prompts(task) for task in tasks]
    attempts = answered(firsts)
    transition = Transition(ExternalConfig(), environment)
    seconds = [
        asyncio.run(transition.next_prompts(task, first, attempt, environment.outcome(attempt, None))).prompts
        for task, first, attempt in zip(tasks, firsts, attempts, strict=True)
    ]
    return list(zip(attempts, answered(seconds), strict=True))


@pytest.mark.slow
def test_the_base_policy_tells_and_copies_rows_sometimes() -> None:
    tasks = load_tasks("bundled:grid", "eval", "grid_private")
    played = next_attempts(PrivateGrid(2), tasks)
    told = [first.rows[0] == task.fields["target"][1] for task, (first, _) in zip(tasks, played, strict=True)]
    copied = [second.rows[0] == first.rows[1] for first, second in played]
    assert 0.12 < sum(told) / len(told) < 0.75  # 1/27 by chance
    assert 0.08 < sum(copied) / len(copied) < 0.6
