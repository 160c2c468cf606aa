"""Engines that have the base model and receive adapters only (`lora.in_engine`), with a real vLLM engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.config import LoraConfig
from marl_ray.core.errors import UserError
from marl_ray.learning.policy_model import load_policy
from marl_ray.models.lora import load_adapter
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
from tests.actors.test_requests_in_flight import assert_sampled_by, long_requests

pytest.importorskip("peft")
pytestmark = [pytest.mark.usefixtures("local_ray"), pytest.mark.slow]

LORA = LoraConfig(rank=4, in_engine=True)
FLOAT_BYTES = 4


@asynccontextmanager
async def an_agent(lora: LoraConfig = LORA, **options: Any) -> AsyncIterator[tuple[GeneratorGroup, LearnerGroup]]:
    """Start generators and learner of one agent, which serve version 0."""
    trainer = learner(learning_rate=1e-2, restarts=5, lora=lora, ranks=options.pop("ranks", 1))
    engine = generators(initialize=trainer.initialize_generator, transport="adapter", lora=lora, **options)
    try:
        await asyncio.gather(engine.start(), trainer.start())
        await trainer.connect(engine, MemoryHistory())
        await update_weights(trainer)
        yield engine, trainer
    finally:
        await asyncio.gather(engine.close(), trainer.close())


@pytest.mark.parametrize("targets", [(), ("q_proj", "v_proj", "down_proj")])
def test_an_update_is_the_adapter_and_the_engine_samples_from_it(targets: tuple[str, ...]) -> None:
    async def scenario() -> None:
        lora = LoraConfig(rank=4, targets=targets, in_engine=True)
        async with an_agent(lora) as (engine, trainer):
            for version in range(3):
                sampled = await sample(engine, PROMPTS)
                assert {c.weight_version for g in sampled for c in g.completions} == {version}
                gap = (await learn(trainer, as_batch(sampled))).logprob_gap
                print("gap", version, gap)
                assert gap is not None
                assert gap < 1e-4
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
            assert_sampled_by(policies, new)
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
