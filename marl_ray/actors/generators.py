"""One agent's generators, as the rollout talks to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from marl_ray.actors.generator import Generator
from marl_ray.actors.handle import ActorDied, Deadline, Handle
from marl_ray.actors.supervisor import Care, Recipe, Supervisor
from marl_ray.config.resources import Deadlines
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId
from marl_ray.core.sampling import Generation, SamplingSpec
from marl_ray.core.waiting import WaitExpired, together

P = ParamSpec("P")
R = TypeVar("R")


class GeneratorGroup:
    """The replicas of one agent. `ranks_each` are the workers of one replica's engine; `restarts`: see `Care`.

    What a replica that is lost was asked is asked of another one, or of its next life: an answer depends on the seed
    and the weights, and on nothing else. `place` makes the recipe of a further replica, and `free` gives its place
    back. Every method waits no longer than `resources.deadlines` says, and raises what `marl_ray.actors.handle` lists.
    """

    def __init__(
        self,
        recipes: Sequence[Recipe[Generator]],
        ranks_each: int,
        deadlines: Deadlines,
        restarts: int = 0,
        place: Callable[[int], Awaitable[Recipe[Generator]]] | None = None,
        free: Callable[[ActorId], None] = lambda id: None,
    ) -> None:
        start = Deadline(deadlines.start_s, "start_s", "to start")
        self.replicas = Supervisor(recipes, Care(start, restarts, deadlines.heartbeat_s))
        self.ranks_each = ranks_each
        self._names = [recipe.id for recipe in recipes]
        self._deadlines = deadlines
        self._place = place
        self._free = free
        self._in_flight: Counter[Handle[Generator]] = Counter()

    async def start(self) -> list[str]:
        """Start all replicas; returns what people should know of them."""
        return [note for notes in await self.replicas.start() for note in notes]

    async def close(self) -> None:
        """End all replicas."""
        await self.replicas.close()

    async def resize(self, replicas: int) -> None:
        """Have so many from now on: further ones start, and serve once they have the weights; of too many the last are
        ended, and what they were asked is asked of the others.

        Raises UserError for less than one, and where the cluster has no place in time.
        """
        if replicas < 1:
            raise UserError(f"{replicas} replicas: an agent needs at least one generator")
        while len(self._names) > replicas:
            name = self._names.pop()
            self.replicas.remove(name)
            self._free(name)
        while len(self._names) < replicas:
            if self._place is None:
                raise UserError("a generator that shares its GPU with the learner has no further replicas")
            recipe = await self._place(len(self._names))
            self._names.append(recipe.id)
            self.replicas.add(recipe)

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        """Sample a group, on the replica with the fewest sequences in flight. Where an engine has no room for all,
        those of lower `priority`, which is the number of their batch, go first."""
        deadline = Deadline(self._deadlines.rollout_s, "rollout_s", "to generate")
        return await self._ask(
            sampling.num_generations, deadline, Generator.generate, prompt, sampling, priority=priority
        )

    async def prompt_lengths(self, prompts: list[str]) -> list[int]:
        """Number of tokens of each prompt."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to measure the prompts")
        return await self._ask(0, deadline, Generator.prompt_lengths, prompts)

    async def fingerprints(self, texts: list[str]) -> list[str]:
        """Each replica's fingerprint of its tokenizer."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to try its tokenizer")
        replicas = self.replicas.serving()
        return await together(*(replica.call(Generator.fingerprint, texts).within(deadline) for replica in replicas))

    async def _ask(
        self,
        sequences: int,
        deadline: Deadline,
        method: Callable[Concatenate[Generator, P], Coroutine[Any, Any, R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """The answer of the replica with the fewest sequences in flight, of which this makes so many."""
        while True:
            replica = min(await self.replicas.ready(), key=self._load)
            self._in_flight[replica] += sequences
            try:
                return await replica.call(method, *args, **kwargs).within(deadline)
            except (ActorDied, WaitExpired) as error:
                self.replicas.lose(replica, str(error))
            finally:
                self._in_flight[replica] -= sequences

    def _load(self, replica: Handle[Generator]) -> tuple[bool, int]:
        return self.replicas.suspect(replica), self._in_flight[replica]
