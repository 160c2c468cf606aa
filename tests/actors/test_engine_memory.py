"""Memory of a real engine under prompts of many lengths."""

from __future__ import annotations

import random
from dataclasses import replace

import psutil
import pytest

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.handle import Deadline
from tests.actors.echo_actor import process_of
from tests.actors.helpers import SAMPLING, generators, run

SOON = Deadline(600.0, "rollout_s", "to generate")
MAX_GROWTH = 64 * 2**20
"""Without a bound on oneDNN's compiled kernels an engine grows by 150 MiB."""


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_an_engine_does_not_grow_with_the_number_of_prompt_lengths() -> None:
    async def grow() -> int:
        group = generators()
        await group.start()
        try:
            (replica,) = group.replicas.serving()
            await replica.call(GenerationActor.serve_initial_weights, 0).within(SOON)
            process, numbers = psutil.Process(process_of(replica)), random.Random(0)

            async def ask(count: int) -> None:
                """Send one request after another, so that each prompt is a step with its own number of tokens."""
                for _ in range(count):
                    prompt = "".join(numbers.choices("abcdefgh \n", k=numbers.randint(20, 300)))
                    sampling = replace(SAMPLING, num_generations=1, max_new_tokens=1, seed=numbers.getrandbits(62))
                    await group.call(1, SOON, GenerationActor.generate, prompt, sampling)

            await ask(100)
            early = process.memory_full_info().uss
            await ask(300)
            return process.memory_full_info().uss - early
        finally:
            await group.close()

    assert run(grow()) < MAX_GROWTH
