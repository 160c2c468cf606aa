"""The plan's figures for models of 3, 7, 32 and 70 billion parameters, beside arithmetic done by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import AutoConfig

from marl_ray.cluster.capacity_plan import plan_capacity
from marl_ray.cluster.hardware import GIB, parse_cluster
from marl_ray.cluster.memory_estimate import ModelInfo
from marl_ray.config import Config
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.logprobs import HEAD_CHUNK_NUMBERS
from marl_ray.plugins.planner.capacity_report import Throughput, estimate_throughputs
from tests.factories import make_config

FOLDER = Path(__file__).parent / "models"
POLICY = PolicyId((0,))
BANDWIDTH, FLOPS = 3.35e12, 989e12
"""Data sheet of an H100 SXM."""
NEAR = 0.15


@dataclass(frozen=True)
class Case:
    """A model, the number of ranks and the tensor parallelism for which its learner and its engine are planned."""

    name: str
    ranks: int
    tensor_parallel: int


CASES = (
    Case("qwen2.5-coder-3b", 1, 1),
    Case("qwen2.5-coder-7b", 4, 1),
    Case("qwen2.5-coder-32b", 8, 2),
    Case("llama-3.1-70b", 16, 4),
)
FEW = {"prompt": 128, "generations": 31, "new": 256, "tasks": 16}


@dataclass(frozen=True)
class ByHand:
    """Sizes of a decoder from its config: layers of four projections, of which two are narrow, and an MLP."""

    layers: int
    hidden: int
    narrow: int
    intermediate: int
    vocabulary: int
    tied: bool

    @classmethod
    def of(cls, name: str) -> ByHand:
        facts = json.loads((FOLDER / name / "config.json").read_text())
        narrow = facts["hidden_size"] // facts["num_attention_heads"] * facts["num_key_value_heads"]
        sizes = (facts["num_hidden_layers"], facts["hidden_size"], narrow, facts["intermediate_size"])
        return cls(*sizes, facts["vocab_size"], facts["tie_word_embeddings"])

    @property
    def in_layers(self) -> float:
        return self.layers * self.hidden * (2 * self.hidden + 2 * self.narrow + 3 * self.intermediate)

    @property
    def parameters(self) -> float:
        return self.in_layers + self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def kv_bytes(self) -> float:
        """Bytes of one token's keys and values in bfloat16."""
        return 2 * self.layers * self.narrow * 2


def config_of(case: Case) -> Config:
    resources = {
        "generator": {"tensor_parallel": case.tensor_parallel, "max_num_seqs": 256},
        "learner": {"ranks": case.ranks},
    }
    sections = {"model": {"name": case.name, "max_length": 4096}, "resources": resources}
    settings = {"gradient_checkpointing": True, "microbatch_tokens": 8192, "rollout_buffer_size": FEW["tasks"]}
    settings |= {"num_generations": FEW["generations"], "max_new_tokens": FEW["new"], "num_agents": 1}
    return make_config(sections=sections, **settings)


def model_of(name: str) -> dict[str, ModelInfo]:
    return {name: ModelInfo(AutoConfig.from_pretrained(FOLDER / name), False, FEW["prompt"])}


def planned(case: Case) -> tuple[dict[str, float], dict[str, float], Throughput]:
    """Return the parts of the learner's and the engine's GPU memory, and the throughput."""
    config, models = config_of(case), model_of(case.name)
    plan = plan_capacity(config, models, parse_cluster("4x8xH100"))
    actors = {actor.id: actor.memory for actor in plan.placed or ()}
    learner, engine = actors[ActorId("learner", POLICY)], actors[ActorId("generator", POLICY)]
    assert learner is not None
    assert engine is not None
    return dict(learner.device), dict(engine.device), estimate_throughputs(config, models, plan)[POLICY]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_memory_and_time_agree_with_arithmetic_by_hand(case: Case) -> None:
    hand = ByHand.of(case.name)
    learner, engine, speed = planned(case)
    near = {"rel": NEAR}
    assert learner["weights"] == pytest.approx(4 * hand.parameters / case.ranks, **near)
    assert learner["gradients"] == pytest.approx(4 * hand.parameters / case.ranks, **near)
    assert learner["optimizer"] == pytest.approx(8 * hand.parameters / case.ranks, **near)
    tokens = FEW["prompt"] + FEW["generations"] * FEW["new"]  # one group fills the micro-batch
    residual = hand.layers * tokens * hand.hidden * 2
    # Where the backward pass starts: the copy of the head, its gradient, and a chunk of logits, in bfloat16.
    at_the_head = residual + 4 * hand.vocabulary * hand.hidden + 2 * HEAD_CHUNK_NUMBERS
    # In a layer: copies of its weights, and seven tensors of the MLP's width and eight of the residual's per token.
    layer = 2 * hand.in_layers / hand.layers + 2 * tokens * (7 * hand.intermediate + 8 * hand.hidden)
    assert (1 - NEAR) * at_the_head < learner["activations"] + learner["logits"] < at_the_head + layer
    largest = 2 * hand.vocabulary * hand.hidden
    assert learner["buffers"] == pytest.approx(4 * max(GIB, largest) + 2 * largest, **near)
    assert engine["weights"] == pytest.approx(2 * hand.parameters / case.tensor_parallel, **near)
    sequences, context = 256, FEW["prompt"] + FEW["new"] / 2
    read = 2 * hand.parameters + sequences * context * hand.kv_bytes
    step = 0.003 + read / (0.6 * BANDWIDTH * case.tensor_parallel)
    waves = 2  # 496 sequences
    prefill = 2 * hand.parameters * FEW["tasks"] * FEW["prompt"] / (0.5 * FLOPS * case.tensor_parallel)
    assert speed.rollout_s == pytest.approx(waves * FEW["new"] * step + prefill, **near)
    # Forward 2, recomputation 2, backward 4 FLOPs per token and weight.
    flops = 8 * (hand.in_layers + hand.vocabulary * hand.hidden)
    assert speed.learn_s == pytest.approx(flops * FEW["tasks"] * tokens / (0.4 * FLOPS * case.ranks), **near)
