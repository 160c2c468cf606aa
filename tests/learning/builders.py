"""Groups, micro-batches and tiny policies for the learner's tests, built with a run's own code."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from marl_ray.config import AgentConfig, CreditConfig, LoraConfig, ModelConfig, OptimizerConfig
from marl_ray.core.batch import Batch, Group, MiniBatch, UpdateStats
from marl_ray.core.episode import Completion, JointAction, Node, Outcome, sibling_calls
from marl_ray.credit.groups import build_batch as build_weighted_batch
from marl_ray.credit.groups import build_group
from marl_ray.learning.attention import PACKED
from marl_ray.learning.learner import NO_ADAPTER, Learner
from marl_ray.learning.micro_batches import Layout, MicroBatch, MicroBatcher, trainable_rows
from marl_ray.learning.prompt_rows import PromptRow
from marl_ray.learning.ranks import SINGLE_RANK, RankGroup
from marl_ray.learning.reference_policy import ReferencePolicy
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.toy import BASE_PATH
from tests.factories import make_config

VOCABULARY, LAYERS, HEADS, KEY_HEADS, WIDTH = 40, 2, 4, 2, 8
"""Shape of the tiny policy; WIDTH is the width of an attention head."""
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HEADS * WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": WIDTH,
}
"""The same shape as arguments of transformers' configs."""


def tiny_qwen2(seed: int = 0) -> Qwen2ForCausalLM:
    """Return a model of the tiny policy's shape with biases and tied embeddings."""
    torch.manual_seed(seed)
    shape = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS}
    sizes = {"vocab_size": VOCABULARY, "hidden_size": HEADS * WIDTH, "intermediate_size": 48}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, **shape, tie_word_embeddings=True))


def with_packed_attention(plain: Any) -> Any:
    """Return a copy of a model with packed attention."""
    model = copy.deepcopy(plain)
    model.set_attn_implementation(PACKED)
    return model


def unweighted_group(
    turn: int, prompt_ids: tuple[int, ...], completions: tuple[Completion, ...], returns: tuple[float, ...]
) -> Group:
    """Return a group with returns and without weights."""
    return Group(turn, sibling_calls(prompt_ids, completions), returns)


def of_agent(group: Group, agent: int) -> Group:
    """Return the group as calls of another agent."""
    return replace(group, calls=tuple(replace(call, agent=agent) for call in group.calls))


def with_prompt(group: Group, prompt_ids: tuple[int, ...]) -> Group:
    """Return the group with another prompt."""
    return replace(group, calls=tuple(replace(call, prompt_ids=prompt_ids) for call in group.calls))


def weigh(groups: Sequence[Group], turn_weights: Sequence[float], estimator: str, aggregation: str) -> MiniBatch:
    """Return the groups of one optimizer step, weighted by a run's own code."""
    settings = {
        "num_agents": 1,
        "num_turns": len(turn_weights),
        "turn_gradient_weights": list(turn_weights),
        "estimator": estimator,
        "loss_aggregation": aggregation,
    }
    config = make_config(**settings)
    (mini_batch,) = build_weighted_batch(
        [build_group(node_of(group), 0, config) for group in groups], 0, config.training
    ).mini_batches
    return mini_batch


def node_of(group: Group) -> Node:
    """Return a node with one agent, whose completions' rewards are the group's returns."""
    actions = [JointAction((i,), Outcome(r), r, (r,)) for i, r in enumerate(group.returns)]
    return Node(group.turn, [list(group.calls)], actions)


def to_rows(
    groups: Sequence[Group], turn_weights: Sequence[float], estimator: str, aggregation: str = "sequence_sum"
) -> list[PromptRow]:
    """Return the completions with a gradient."""
    return trainable_rows(weigh(groups, turn_weights, estimator, aggregation).groups)


def build_batch(groups: Sequence[Group], size: int) -> Batch:
    """Return mini-batches of `size` groups of turn 0 with magrpo advantages."""
    return Batch(
        0,
        tuple(weigh(groups[i : i + size], [1.0], "magrpo", "sequence_sum") for i in range(0, len(groups), size)),
    )


def micro_batches(rows: Sequence[PromptRow], max_tokens: int, layout: Layout) -> list[MicroBatch]:
    """Return all micro-batches of the rows."""
    batcher = MicroBatcher(max_tokens, layout)
    return [*batcher.add(rows), *batcher.flush()]


def save_tiny_policy(folder: Path, width: int = WIDTH) -> None:
    """Save a random model of two layers, with weights large enough for distinct choices, and a tokenizer."""
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
    """Return a learner of the policy in `folder`, which is also the reference; `kl` is its coefficient."""
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
                {0: str(folder)},
                str(folder),
                ModelConfig(),
                learner.logprob_model,
                agent,
                CreditConfig(),
                optimizer,
                {},
            )
    return learner


def some_groups(count: int, seed: int) -> list[Group]:
    """Return groups of which some fill micro-batches, some share one, and some have no gradient."""
    chance = random.Random(seed)

    def ids(longest: int) -> tuple[int, ...]:
        return tuple(chance.randrange(VOCABULARY) for _ in range(chance.randint(1, longest)))

    def completion() -> Completion:
        tokens = ids(7)
        logprobs = tuple(chance.uniform(-5, -2) for _ in tokens)
        return Completion(tokens, "", logprobs, "stop", ((0, len(tokens)),))

    def group() -> Group:
        size = chance.randint(2, 5)
        returns = tuple(float(chance.randint(0, 1)) for _ in range(size))
        return unweighted_group(0, ids(5), tuple(completion() for _ in range(size)), returns)

    return [group() for _ in range(count)]


def numbered(step: int, groups: Sequence[Group], size: int) -> Batch:
    return replace(build_batch(groups, size), step=step)


def stream(learner: Learner, batch: Batch, cuts: Sequence[int]) -> UpdateStats:
    """Accumulate portions that end at `cuts`, then finish with the remaining groups."""
    first, *later = batch.mini_batches
    done = 0
    for cut in cuts:
        learner.accumulate(batch.step, done, first.groups[done:cut])
        done = cut
    return learner.finish(replace(batch, mini_batches=(replace(first, groups=first.groups[done:]), *later)), done)


def assert_same_state(one: Learner, other: Learner) -> None:
    assert one.step == other.step
    for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    for key, moments in one.optimizer.state_dict()["state"].items():
        for name, value in moments.items():
            found = other.optimizer.state_dict()["state"][key][name]
            for part, other_part in zip(tree_leaves(value), tree_leaves(found), strict=True):
                assert torch.equal(torch.as_tensor(part), torch.as_tensor(other_part)), name
