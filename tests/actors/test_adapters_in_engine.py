"""Engines that have the base model and receive adapters only (`lora.in_engine`), with a real vLLM engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.config import LoraConfig
from marl_ray.core.errors import UserError
from marl_ray.learning.policy_model import load_policy
from marl_ray.toy import BASE_PATH
from tests.actors.echo_actor import kill
from tests.actors.helpers import (
    PROMPTS,
    MemoryHistory,
    as_batch,
    generators,
    learn,
    learner,
    run,
    sample,
    update_weights,
)
from tests.actors.in_flight import assert_sampled_by, long_requests
from tests.actors.random_models import random_model

pytest.importorskip("peft")
pytestmark = [pytest.mark.usefixtures("local_ray"), pytest.mark.slow]

LORA = LoraConfig(rank=4, in_engine=True)
FLOAT_BYTES = 4


@asynccontextmanager
async def an_agent(lora: LoraConfig = LORA, **options: Any) -> AsyncIterator[tuple[GeneratorGroup, LearnerGroup]]:
    """Start generators and learner of one agent, which serve version 0."""
    folder = options.pop("folder", str(BASE_PATH))
    trainer = learner(folder, restarts=5, lora=lora, ranks=options.pop("ranks", 1))
    engine = generators(folder, initialize=trainer.initialize_generator, transport="adapter", lora=lora, **options)
    try:
        await asyncio.gather(engine.start(), trainer.start())
        await trainer.connect(engine, MemoryHistory())
        await update_weights(trainer)
        yield engine, trainer
    finally:
        await asyncio.gather(engine.close(), trainer.close())


@pytest.mark.parametrize(("targets", "ranks"), [((), 1), (("q_proj", "v_proj", "down_proj"), 2)])
def test_an_update_is_the_adapter_and_the_engine_samples_from_it(targets: tuple[str, ...], ranks: int) -> None:
    async def scenario() -> None:
        lora = LoraConfig(rank=4, targets=targets, in_engine=True)
        async with an_agent(lora, ranks=ranks) as (engine, trainer):
            for version in range(3):
                sampled = await sample(engine, PROMPTS)
                assert {c.weight_version for g in sampled for c in g.completions} == {version}
                gap = (await learn(trainer, as_batch(sampled))).logprob_gap
                assert gap is not None
                assert gap < 1e-4
                stale = await trainer.logprob_gap(as_batch(sampled).mini_batches[0].groups)
                assert stale > 1e-3, "the step changed the adapter"
                result = await trainer.update_weights(True)
                assert result is not None
                assert result.sent_bytes == FLOAT_BYTES * adapter_size(targets)
            unchanged = await trainer.update_weights(False)
            assert unchanged is not None
            assert (unchanged.checksum, unchanged.sent_bytes) == (result.checksum, 0)

    run(scenario())


def adapter_size(targets: tuple[str, ...]) -> int:
    """Return the number of values of an adapter of the toy model."""
    base = load_policy(str(BASE_PATH), False, torch.device("cpu"))
    sizes = 0
    for name, module in base.named_modules():
        is_target = name.rpartition(".")[2] in targets if targets else not name.endswith("lm_head")
        if isinstance(module, torch.nn.Linear) and is_target:
            sizes += LORA.rank * (module.in_features + module.out_features)
    return sizes


def test_requests_in_flight_continue_with_the_new_adapter(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with an_agent() as (engine, trainer):
            batch = as_batch(await sample(engine, PROMPTS))  # caches the prompts under version 0
            await trainer.export(str(tmp_path / "0"), PROMPTS)
            await learn(trainer, batch)
            await trainer.export(str(tmp_path / "1"), PROMPTS)
            running = await long_requests(engine)
            await update_weights(trainer)
            new = await sample(engine, PROMPTS)
            old = await asyncio.gather(*running)
            policies = [load_policy(str(tmp_path / str(v)), False, torch.device("cpu")).eval() for v in range(2)]
            spans = {tuple(version for version, _ in c.spans) for g in old for c in g.completions}
            assert (0, 1) in spans, spans
            assert_sampled_by(policies, old)
            assert await trainer.logprob_gap(as_batch(new).mini_batches[0].groups) < 1e-4
            assert {c.weight_version for g in new for c in g.completions} == {1}

    run(scenario())


def test_a_killed_generator_comes_back_with_the_current_adapter() -> None:
    async def scenario() -> None:
        async with an_agent(restarts=2) as (engine, trainer):
            await learn(trainer, as_batch(await sample(engine, PROMPTS)))
            await update_weights(trainer)
            before = await sample(engine, PROMPTS)
            kill(engine.replicas.serving()[0])
            after = await sample(engine, PROMPTS)
            assert [replica.incarnation for replica in engine.replicas.serving()] == [2]
            assert after == before
            assert {c.weight_version for g in after for c in g.completions} == {1}

    run(scenario())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("family", "settings"),
    [("phi3", {"num_key_value_heads": 2}), ("gemma2", {"sliding_window": 4096})],
    ids=["joined projections", "softcapping"],
)
def test_other_families_agree_with_their_engine(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    folder = random_model(family, settings, tmp_path / family)

    async def scenario() -> None:
        async with an_agent(folder=folder) as (engine, trainer):
            for _ in range(2):
                stats = await learn(trainer, as_batch(await sample(engine, PROMPTS[:2])))
                assert stats.logprob_gap is not None
                assert stats.logprob_gap < 1e-4
                await update_weights(trainer)

    run(scenario())


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("gpt2", {}, r"does not support LoRA yet\. \(with lora\.in_engine false, it would"),
        (
            "qwen3_moe",
            EXPERTS,
            r"vLLM serves no adapters of .* \(2 of 2 layers with an adapter\): set lora\.in_engine to",
        ),
    ],
    ids=["no adapters", "experts on a CPU"],
)
def test_models_whose_adapters_vllm_does_not_serve_are_refused_at_the_start(
    family: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        lora = replace(LORA, targets=("q_proj",)) if settings else LORA
        engine = generators(random_model(family, settings, tmp_path), transport="adapter", lora=lora)
        try:
            with pytest.raises(UserError, match=message):
                await engine.start()
        finally:
            await engine.close()

    run(scenario())


def test_layers_that_vllm_would_ignore_are_refused_at_the_start() -> None:
    class Blind(GenerationActor):
        """A generation actor whose engine has no place for adapters of attention layers."""

        async def start(self) -> list[str]:
            from marl_ray.weights import vllm_worker

            def unserved(manager: Any, layers: Sequence[str]) -> list[str]:
                return [layer for layer in layers if "self_attn" in layer]

            vllm_worker.unserved_layers = unserved
            return await super().start()

    async def scenario() -> None:
        engine = generators(transport="adapter", lora=LORA, actor_class=Blind)
        try:
            with pytest.raises(UserError, match=r"layers\.0\.self_attn\.q_proj \(16 of 28 layers .*: set lora\.in_eng"):
                await engine.start()
        finally:
            await engine.close()

    run(scenario())
