"""Groups for the learner's tests, made as a run makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from marl_ray.config import AgentConfig, CreditConfig, LoraConfig, ModelConfig, OptimizerConfig, from_tree
from marl_ray.core.batch import Batch, Group, MiniBatch
from marl_ray.core.episode import Completion, JointAction, Node, Outcome
from marl_ray.credit.groups import build_batch as credited
from marl_ray.credit.groups import build_group
from marl_ray.learning.learner import NO_ADAPTER, Learner
from marl_ray.learning.micro_batches import Layout, MicroBatch, MicroBatcher, PromptRow, trainable_rows
from marl_ray.learning.ranks import SINGLE_RANK, RankGroup
from marl_ray.learning.reference_policy import ReferencePolicy
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.toy import BASE_PATH

VOCABULARY, LAYERS, HEADS, KEY_HEADS, WIDTH = 40, 2, 4, 2, 8
"""Of the tiny policy; WIDTH is that of a head."""


def returned(
    turn: int, prompt_ids: tuple[int, ...], completions: tuple[Completion, ...], returns: tuple[float, ...]
) -> Group:
    """A group with returns, not weighed yet."""
    return Group(turn, prompt_ids, completions, returns, ())


def weigh(groups: Sequence[Group], turn_weights: Sequence[float], estimator: str, aggregation: str) -> MiniBatch:
    """The groups of one optimizer step with their weights, credited by a run's own code."""
    settings = {
        "num_agents": 1,
        "num_turns": len(turn_weights),
        "turn_gradient_weights": list(turn_weights),
        "estimator": estimator,
        "loss_aggregation": aggregation,
    }
    tree = {"model": {"name": "tiny"}, "dataset": {"name": "bundled:toy"}, "magrpo": settings}
    config = from_tree(tree, "magrpo")
    (found,) = credited([build_group(node_of(group), 0, config) for group in groups], 0, config).mini_batches
    return found


def node_of(group: Group) -> Node:
    """Where the agent is alone, and its completions' rewards are the group's returns."""
    actions = [JointAction((i,), Outcome(r), r, (r,)) for i, r in enumerate(group.returns)]
    return Node(group.turn, [""], [group.prompt_ids], [list(group.completions)], actions)


def to_rows(
    groups: Sequence[Group], turn_weights: Sequence[float], estimator: str, aggregation: str = "sequence_sum"
) -> list[PromptRow]:
    """What of them has a gradient."""
    return trainable_rows(weigh(groups, turn_weights, estimator, aggregation).groups)


def build_batch(groups: Sequence[Group], size: int) -> Batch:
    """Mini-batches of `size` groups of turn 0, ranked by magrpo."""
    return Batch(
        0,
        tuple(weigh(groups[i : i + size], [1.0], "magrpo", "sequence_sum") for i in range(0, len(groups), size)),
    )


def micro_batches(rows: Sequence[PromptRow], max_tokens: int, layout: Layout) -> list[MicroBatch]:
    """All of them at once."""
    cutter = MicroBatcher(max_tokens, layout)
    return [*cutter.add(rows), *cutter.flush()]


def save_tiny_policy(folder: Path, width: int = WIDTH) -> None:
    """A random model of two layers, its weights large enough for its choices to differ, and a tokenizer beside it."""
    torch.manual_seed(0)
    shape = {"num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": width}
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HEADS * width, intermediate_size=48, num_hidden_layers=LAYERS, **shape
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    load_tokenizer(str(BASE_PATH), ModelConfig()).save_pretrained(folder)


def tiny_learner(
    folder: Path,
    layout: Layout = "packed",
    temperature: float = 0.7,
    kl: float = 0.0,
    credit: CreditConfig | None = None,
    lora: LoraConfig = NO_ADAPTER,
    ranks: RankGroup = SINGLE_RANK,
    learning_rate: float = 1e-2,
    **settings: Any,
) -> Learner:
    """A learner of the policy in `folder`, which is the reference too; `kl` is its coefficient."""
    agent = AgentConfig(name="tiny", temperature=temperature, learning_rate=learning_rate, reference_kl_coef=kl)
    optimizer = OptimizerConfig(**({"importance": "none"} | settings))
    arguments = (str(folder), agent, ModelConfig(), credit or CreditConfig(), optimizer, "float32", 10, 1, lora)
    learner = Learner(*arguments, ranks=ranks)
    assert learner.logprob_model.layout == "packed"
    if layout == "padded":
        learner.logprob_model = replace(learner.logprob_model, layout=layout)
        learner.policy.set_attn_implementation("sdpa")
        if kl:
            learner.reference = ReferencePolicy(
                str(folder), False, learner.logprob_model, agent, CreditConfig(), optimizer
            )
    return learner
