"""Other models than the bundled one, each with an engine and a learner of its own: their ends, their layouts, their
names of weights."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import torch

from marl_ray.models.tokenization import load_tokenizer
from marl_ray.toy import BASE_PATH
from tests.actors.helpers import MODEL, Log, as_batch, generators, learn, learner, sample, update_weights
from tests.actors.test_engine_and_learner import PROMPTS


def test_a_completion_ends_at_every_end_that_the_model_names(local_ray: None, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(BASE_PATH, folder)
    tokenizer = load_tokenizer(str(folder), MODEL)
    space = tokenizer.convert_tokens_to_ids("\u0120")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [tokenizer.eos_token_id, space]}))

    async def scenario() -> None:
        engine, trainer = generators(str(folder)), learner()
        try:
            await asyncio.gather(engine.start(), trainer.start())
            await trainer.connect(engine, Log())
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
    ("family", "settings", "says"),
    [
        ("gemma2", {"sliding_window": 4096}, "softcap"),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}, None),
    ],
    ids=["softcapping, padded", "experts, under other names in its files"],
)
def test_other_families_agree_with_the_engine_before_and_after_an_update(
    family: str, settings: dict, says: str | None, local_ray: None, tmp_path: Path
) -> None:
    folder = random_model(family, settings, tmp_path / family)

    async def scenario() -> None:
        engine, trainer = generators(folder), learner(folder, learning_rate=1e-3)
        try:
            _, notes = await asyncio.gather(engine.start(), trainer.start())
            assert [says in note for note in notes] == [True] if says else notes == []
            await trainer.connect(engine, Log())
            for _ in range(2):
                await update_weights(trainer)
                stats = await learn(trainer, as_batch(await sample(engine, PROMPTS[:2])))
                assert stats.optimizer_steps == 1
                assert stats.logprob_gap is not None
                assert stats.logprob_gap < 1e-4
        finally:
            await asyncio.gather(engine.close(), trainer.close())

    asyncio.run(scenario())


def random_model(family: str, settings: dict, folder: Path) -> str:
    """A small model of `family` with the bundled tokenizer and random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 1,
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape, **settings))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BASE_PATH / name, folder)
    return str(folder)
