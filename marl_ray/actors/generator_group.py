"""One policy's generators, as the rollout talks to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count, islice
from typing import Any, Concatenate, ParamSpec, TypeVar

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.handle import ActorDied, Deadline, Handle
from marl_ray.actors.supervisor import ActorSpec, RestartPolicy, Supervisor
from marl_ray.config import Deadlines
from marl_ray.core.concurrency import DeadlineExceeded, gather
from marl_ray.core.episode import Generation, SamplingSpec
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId

P = ParamSpec("P")
R = TypeVar("R")


class GeneratorGroup:
    """The replicas of one policy. `workers_per_replica` are the workers of one replica's engine; `restarts`: see `RestartPolicy`.

    What a replica that is lost was asked is asked of another one, or of its next incarnation: an answer depends on the seed
    and the weights, and on nothing else. `place` makes the recipe of a further replica, and `free` gives its place
    back. Every method waits no longer than `resources.deadlines` says, and raises what `marl_ray.actors.handle` lists.
    """

    def __init__(
        self,
        recipes: Sequence[ActorSpec[GenerationActor]],
        workers_per_replica: int,
        deadlines: Deadlines,
        restarts: int = 0,
        place: Callable[[int], Awaitable[ActorSpec[GenerationActor]]] | None = None,
        free: Callable[[ActorId], None] = lambda id: None,
    ) -> None:
        start = Deadline(deadlines.start_s, "start_s", "to start")
        self.replicas = Supervisor(recipes, RestartPolicy(start, restarts, deadlines.heartbeat_s))
        self.workers_per_replica = workers_per_replica
        self._names = [recipe.id for recipe in recipes]
        self._deadlines = deadlines
        self._place = place
        self._free = free
        self._in_flight: Counter[Handle[GenerationActor]] = Counter()

    async def start(self) -> list[str]:
        """Start all replicas; returns what people should know of them."""
        return [note for notes in await self.replicas.start() for note in notes]

    async def close(self) -> None:
        """End all replicas."""
        await self.replicas.close()

    @property
    def size(self) -> int:
        """The replicas that there are, or will be when those that start have started."""
        return len(self._names) - len(self.replicas.retired())

    async def resize(self, replicas: int) -> None:
        """Have so many from now on; returns when all of them serve.

        Further ones start, and serve once they have the weights. Of too many the last are ended, and what they were
        asked is asked of the others. Those that are lost for good do not count.

        Raises UserError for less than one; where the cluster has no place for all of them in time, and nothing changes;
        and where one does not start, and the others are kept.
        """
        if replicas < 1:
            raise UserError(f"{replicas} replicas: an agent needs at least one generator")
        self._remove(self.replicas.retired())
        self._remove(self._names[replicas:])
        for recipe in await self._places(replicas - len(self._names)):
            self._names.append(recipe.id)
            self.replicas.add(recipe)
        self._names.sort(key=lambda name: name.replica)
        try:
            await self.replicas.wait_ready(all_members=True)
        except UserError:
            self._remove(self.replicas.retired())
            raise

    async def _places(self, more: int) -> list[ActorSpec[GenerationActor]]:
        """So many further replicas, under the first names that are free; all, or none and a UserError."""
        if more and self._place is None:
            raise UserError("a generator that shares its GPU with the learner has no further replicas")
        there = {name.replica for name in self._names}
        unused = (number for number in count() if number not in there)
        recipes: list[ActorSpec[GenerationActor]] = []
        try:
            for number in islice(unused, more):
                assert self._place is not None
                recipes.append(await self._place(number))
        except BaseException:
            for recipe in recipes:
                self._free(recipe.id)
            raise
        return recipes

    def _remove(self, names: Sequence[ActorId]) -> None:
        for name in names:
            self._names.remove(name)
            self.replicas.remove(name)
            self._free(name)

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        """Sample a group, on the replica with the fewest sequences in flight. Where an engine has no room for all,
        those of lower `priority`, which is the number of their batch, go first."""
        deadline = Deadline(self._deadlines.rollout_s, "rollout_s", "to generate")
        return await self._ask(
            sampling.num_generations, deadline, GenerationActor.generate, prompt, sampling, priority=priority
        )

    async def serve_initial_weights(self) -> None:
        """Let all replicas, in every incarnation, serve the weights that they load, as version 0: nobody learns."""
        deadline = Deadline(self._deadlines.sync_s, "sync_s", "to serve its weights")

        async def fit(replica: Handle[GenerationActor]) -> None:
            await replica.call(GenerationActor.serve_initial_weights, 0).within(deadline)

        self.replicas.fit = fit
        await gather(*(fit(replica) for replica in self.replicas.serving()))

    async def prompt_lengths(self, prompts: list[str]) -> list[int]:
        """Number of tokens of each prompt."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to measure the prompts")
        return await self._ask(0, deadline, GenerationActor.prompt_lengths, prompts)

    async def fingerprints(self, texts: list[str]) -> list[str]:
        """Each replica's fingerprint of its tokenizer."""
        deadline = Deadline(self._deadlines.start_s, "start_s", "to try its tokenizer")
        replicas = self.replicas.serving()
        return await gather(
            *(replica.call(GenerationActor.fingerprint, texts).within(deadline) for replica in replicas)
        )

    async def _ask(
        self,
        sequences: int,
        deadline: Deadline,
        method: Callable[Concatenate[GenerationActor, P], Coroutine[Any, Any, R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """The answer of the replica with the fewest sequences in flight, of which this makes so many.

        Raises DeadlineExceeded where a second one, too, takes longer than the deadline: so would all others.
        """
        late = False
        while True:
            replica = min(await self.replicas.wait_ready(), key=self._load)
            self._in_flight[replica] += sequences
            try:
                return await replica.call(method, *args, **kwargs).within(deadline)
            except (ActorDied, DeadlineExceeded) as error:
                if late and isinstance(error, DeadlineExceeded):
                    raise
                late = isinstance(error, DeadlineExceeded)
                self.replicas.report_lost(replica, str(error))
            finally:
                self._in_flight[replica] -= sequences

    def _load(self, replica: Handle[GenerationActor]) -> tuple[bool, int]:
        return self.replicas.is_suspect(replica), self._in_flight[replica]
