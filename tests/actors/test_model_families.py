"""Models other than the bundled one, with an engine and a learner each: end-of-sequence tokens, batch layouts and
weight names."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.handle import Handle
from marl_ray.core.errors import UserError
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.toy import BASE_PATH
from tests.actors.echo_actor import SOON
from tests.actors.helpers import (
    MODEL,
    PROMPTS,
    MemoryHistory,
    as_batch,
    generators,
    learn,
    learner,
    sample,
    update_weights,
)
from tests.actors.random_models import random_model

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def test_a_completion_ends_at_every_end_of_sequence_token_of_the_model(local_ray: None, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(BASE_PATH, folder)
    tokenizer = load_tokenizer(str(folder), MODEL)
    space = tokenizer.convert_tokens_to_ids("\u0120")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [tokenizer.eos_token_id, space]}))

    async def scenario() -> None:
        trainer = learner()
        engine = generators(str(folder), initialize=trainer.initialize_generator)
        try:
            await asyncio.gather(engine.start(), trainer.start())
            await trainer.connect(engine, MemoryHistory())
            await update_weights(trainer)
            completions = [c for g in await sample(engine, PROMPTS) for c in g.completions]
            assert any(c.token_ids[-1] == space for c in completions)
            for c in completions:
                assert space not in c.token_ids[:-1]
                assert (c.token_ids[-1] in (space, tokenizer.eos_token_id)) == (c.finish_reason == "stop")
        finally:
            await asyncio.gather(engine.close(), trainer.close())

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("family", "settings", "note"),
    [
        ("gemma2", {"sliding_window": 4096}, "softcap"),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}, None),
    ],
    ids=["softcapping, padded", "experts, with other names in files"],
)
def test_other_families_agree_with_the_engine_before_and_after_an_update(
    family: str, settings: dict, note: str | None, local_ray: None, tmp_path: Path
) -> None:
    folder = random_model(family, settings, tmp_path / family)

    async def scenario() -> None:
        trainer = learner(folder, learning_rate=1e-3)
        engine = generators(folder, initialize=trainer.initialize_generator)
        try:
            _, notes = await asyncio.gather(engine.start(), trainer.start())
            assert [note in line for line in notes] == [True] if note else notes == []
            await trainer.connect(engine, MemoryHistory())
            for _ in range(2):
                await update_weights(trainer)
                stats = await learn(trainer, as_batch(await sample(engine, PROMPTS[:2])))
                assert stats.optimizer_steps == 1
                assert stats.logprob_gap is not None
                assert stats.logprob_gap < 1e-4
        finally:
            await asyncio.gather(engine.close(), trainer.close())

    asyncio.run(scenario())


def test_a_head_size_without_a_kernel_is_final_after_two_engines(local_ray: None, tmp_path: Path) -> None:
    async def initialize(replica: Handle[GenerationActor]) -> None:
        await replica.call(GenerationActor.serve_initial_weights, 0).within(SOON)

    async def scenario() -> None:
        folder = random_model("llama", {"head_dim": 24}, tmp_path / "model")
        engine = generators(folder, restarts=9, initialize=initialize)
        try:
            await engine.start()
            with pytest.raises(UserError, match=r"head_dim=24.*, twice in a row .*: set another model.name"):
                await sample(engine, PROMPTS[:1])
            assert engine.replicas.lost_count == 1, "one restart"
        finally:
            await engine.close()

    asyncio.run(scenario())
