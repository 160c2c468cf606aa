"""`bundled:toy-roll-call-base`: right answers are likely and not certain."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch
from transformers import AutoTokenizer, Qwen2ForCausalLM

from marl_ray.data.loading import load_tasks
from marl_ray.plugins.roll_call import ROLL_CALL_BASE_PATH
from marl_ray.plugins.roll_call.environment import RollCall
from tools.toy.make_base import sample


@pytest.mark.slow
def test_the_base_policy_writes_about_half_of_the_cells_right() -> None:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM.from_pretrained(ROLL_CALL_BASE_PATH)
    tokenizer = AutoTokenizer.from_pretrained(ROLL_CALL_BASE_PATH)
    environment = RollCall(16)
    shares: list[float] = []
    for task in load_tasks("bundled:roll-call", "eval[:16]"):
        answers = sample(model, tokenizer, environment.first_prompts(task), 4)
        shares += environment.attempt(task, answers, last=True).shares
    assert 0.45 < fmean(shares) < 0.65
