"""One agent's generators, as the rollout talks to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from marl_ray.actors.generator import Generator
from marl_ray.actors.handle import Deadline, Handle
from marl_ray.actors.supervisor import Recipe, Supervisor
from marl_ray.config.resources import Deadlines
from marl_ray.core.sampling import Generation, SamplingSpec
from marl_ray.core.waiting import together


class GeneratorGroup:
    """The replicas of one agent. `ranks_each` are the workers of one replica's engine.

    Every method waits no longer than `resources.deadlines` says, and raises what `marl_ray.actors.handle` lists.
    """

    def __init__(self, recipes: Sequence[Recipe[Generator]], ranks_each: int, deadlines: Deadlines) -> None:
        self.replicas = Supervisor(recipes, Deadline(deadlines.start_s, "start_s", "to start"))
        self.ranks_each = ranks_each
        self._deadlines = deadlines
        self._in_flight: Counter[Handle[Generator]] = Counter()

    async def start(self) -> list[str]:
        """Start all replicas; returns what people should know of them."""
        return [note for notes in await self.replicas.start() for note in notes]

    async def close(self) -> None:
        """End all replicas."""
        await self.replicas.close()

    async def generate(self, prompt: str, sampling: SamplingSpec) -> Generation:
        """Sample a group, on the replica with the fewest sequences in flight."""
        replica = min(self.replicas.serving(), key=self._in_flight.__getitem__)
        self._in_flight[replica] += sampling.num_generations
        try:
            deadline = Deadline(self._deadlines.rollout_s, "rollout_s", "to generate")
            return await replica.call(Generator.generate, prompt, sampling).within(deadline)
        finally:
            self._in_flight[replica] -= sampling.num_generations

    async def prompt_lengths(self, prompts: list[str]) -> list[int]:
        """Number of tokens of each prompt."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to measure the prompts")
        return await self.replicas.serving()[0].call(Generator.prompt_lengths, prompts).within(deadline)

    async def fingerprints(self, texts: list[str]) -> list[str]:
        """Each replica's fingerprint of its tokenizer."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to try its tokenizer")
        replicas = self.replicas.serving()
        return await together(*(replica.call(Generator.fingerprint, texts).within(deadline) for replica in replicas))
