"""Learners with a critic, and groups with critic samples, for tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from marl_ray.config import CreditConfig, LoraConfig
from marl_ray.core.batch import Batch, CriticSample, Group, MiniBatch
from marl_ray.core.episode import Completion, sibling_calls
from marl_ray.learning.critic import Critic
from marl_ray.learning.learner import Learner
from marl_ray.learning.micro_batches import Layout
from tests.learning.builders import VOCABULARY, tiny_learner

Kind = Literal["iac", "maac"]
Target = Literal["td", "mc"]
DISCOUNT, COEFFICIENT = 0.5, 0.7
LAYOUTS: tuple[Layout, ...] = ("packed", "padded")
KINDS: tuple[Kind, ...] = ("iac", "maac")


def learner_of(
    folder: Path,
    kind: Kind,
    target: Target,
    layout: Layout = "packed",
    rank: int = 0,
    whitened: bool = False,
    body: Literal["shared", "own"] = "shared",
    **more: Any,
) -> Learner:
    """Return a learner whose value head has random weights."""
    credit = CreditConfig(
        critic=kind, critic_target=target, discount=DISCOUNT, normalize_advantages=whitened, critic_body=body
    )
    settings = {"value_loss_coef": COEFFICIENT, "microbatch_tokens": 24} | more
    learner = tiny_learner(folder, layout, credit=credit, lora=LoraConfig(rank=rank), **settings)
    critic = critic_of(learner)
    if layout == "padded":
        critic._body = replace(critic._body, layout=layout)
        critic._body.model.set_attn_implementation("sdpa")
    torch.manual_seed(1)
    torch.nn.init.normal_(critic.head.weight, std=0.3)
    torch.nn.init.constant_(critic.head.bias, 0.2)
    return learner


def critic_of(learner: Learner) -> Critic:
    assert learner.critic is not None
    return learner.critic


def some_groups(count: int, seed: int = 0, kind: Kind = "iac") -> list[Group]:
    """Return groups of one to three completions, some with one or two successor states."""
    chance = random.Random(seed)

    def ids(longest: int) -> tuple[int, ...]:
        return tuple(chance.randrange(VOCABULARY) for _ in range(chance.randint(1, longest)))

    def completion() -> Completion:
        tokens = ids(5)
        return Completion(tokens, "", tuple(chance.uniform(-4, -2) for _ in tokens), "stop", ((0, len(tokens)),))

    def group() -> Group:
        size, prompt = chance.randint(1, 3), ids(6)
        rewards, returns = (tuple(chance.uniform(-1, 4) for _ in range(size)) for _ in range(2))
        successors = tuple(tuple(ids(8) for _ in range(chance.randint(0, 2))) for _ in range(size))
        state = prompt if kind == "iac" else ids(9)
        completions = tuple(completion() for _ in range(size))
        sample = CriticSample(state, rewards, successors)
        return Group(0, sibling_calls(prompt, completions), returns, (1 / size,) * size, critic_sample=sample)

    return [group() for _ in range(count)]


def batch(step: int, groups: Sequence[Group], size: int) -> Batch:
    parts = (tuple(groups[i : i + size]) for i in range(0, len(groups), size))
    return Batch(step, tuple(MiniBatch(part, len(part)) for part in parts))
