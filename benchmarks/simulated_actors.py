"""Parts of `benchmarks.simulate`: a virtual clock, and simulated engines, learners and sandbox."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

from benchmarks.simulated_durations import Pace, SlotEngine
from marl_ray.core.batch import Group, GroupQueue, UpdateStats
from marl_ray.core.episode import Completion, Generation, Outcome, SamplingSpec, Task
from marl_ray.core.ids import PolicyId
from marl_ray.environments.base import Environment

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a virtual clock: only sleeping advances it, and without real delay."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 0.0

    def time(self) -> float:
        """Return virtual seconds."""
        return self._virtual

    def _run_once(self) -> None:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0].cancelled():
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
        if not self._ready:  # type: ignore[attr-defined]
            if not timers:
                raise RuntimeError("deadlock: all tasks wait and there is no timer")
            self._virtual = max(self._virtual, timers[0].when())
        super()._run_once()  # type: ignore[misc]

    def run_in_executor(self, executor: Any, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Call the function at once, since threads do not run on the virtual clock."""
        future: Future[T] = Future()
        future.set_result(function(*arguments))
        return asyncio.wrap_future(future, loop=self)


@dataclass
class SyntheticEnvironment(Environment[Any]):
    """An environment whose reward is a pseudo-random function of the completions. For a share `uninformative` of the
    tasks, all completions have the same reward."""

    num_agents: int
    uninformative: float = 0.0

    def roles(self, task: Task) -> list[str]:
        return [f"agent {i}" for i in range(self.num_agents)]

    def first_prompts(self, task: Task) -> list[str]:
        return [task.prompt] * self.num_agents

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Any:
        differs = random.Random(task.id).random() >= self.uninformative
        return SimpleNamespace(program=tuple(responses), answers=responses, differs=differs)

    def outcome(self, attempt: Any, report: Any) -> Outcome:
        return Outcome(random.Random(repr(attempt.answers)).random() if attempt.differs else 0.5)

    def feedback(self, attempt: Any, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return []

    def revisions(self, task: Task) -> list[str]:
        return ["Again."] * self.num_agents


class Generators:
    """The engines of one agent. A failed engine returns after `restart_s` seconds; until then the other engines serve
    its requests, or the requests wait."""

    def __init__(self, pace: Pace, replicas: int, mtbf_s: float, restart_s: float, seed: int) -> None:
        self.pace, self.mtbf_s, self.restart_s = pace, mtbf_s, restart_s
        self.version = 0
        self.engines = [SlotEngine(pace) for _ in range(replicas)]
        self.serving = list(self.engines)
        self.losses = 0
        self._back = asyncio.Event()
        if mtbf_s:
            rng = random.Random(seed)
            for engine in self.engines:
                asyncio.get_running_loop().call_later(rng.expovariate(1 / mtbf_s), self._lose, engine, rng)

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        lengths = self.pace.lengths(sampling.seed, sampling.num_generations)
        while True:
            while not self.serving:
                await self._back.wait()
            engine, version = min(self.serving, key=lambda e: e.in_flight), self.version
            try:
                await engine.generate(lengths, priority)
            except ConnectionError:
                continue
            token_ids: Any = [range(n) for n in lengths]  # the right length, without storing tokens
            return Generation(
                (0,), tuple(Completion(t, str(len(t)), (), "stop", ((version, len(t)),)) for t in token_ids)
            )

    def _lose(self, engine: SlotEngine, rng: random.Random) -> None:
        self.losses += 1
        self.serving.remove(engine)
        self._back.clear()
        engine.lose()
        asyncio.get_running_loop().call_later(self.restart_s, self._return, engine, rng)

    def _return(self, engine: SlotEngine, rng: random.Random) -> None:
        self.serving.append(engine)
        self._back.set()
        asyncio.get_running_loop().call_later(rng.expovariate(1 / self.mtbf_s), self._lose, engine, rng)


class Learner:
    """The learner of one policy. With `streams` it learns groups during the rollout of their batch."""

    def __init__(self, policy: PolicyId, pace: Pace, generators: Generators, streams: bool) -> None:
        self.policy, self.pace, self.generators, self.streams = policy, pace, generators, streams
        self.step = 0

    async def learn(self, queue: GroupQueue) -> UpdateStats:
        taken = 0
        while self.streams and (groups := await queue.get(taken)):
            taken += len(groups)
            await self._compute(groups)
        batch = await queue.batch()
        await self._compute([group for mini_batch in batch.mini_batches for group in mini_batch.groups][taken:])
        await asyncio.sleep(self.pace.optimizer_s)
        self.step += 1
        return UpdateStats(0.0, 0.0, 0.0, None, None, 1, 0)

    async def update_weights(self, changed: bool) -> None:
        await asyncio.sleep(self.pace.publish_s)
        self.generators.version = self.step

    async def begin_save(self, folder: str) -> None:
        """Copy nothing, which takes no time."""

    async def finish_save(self, may_restart: bool = True) -> None:
        """Write nothing, which takes no time."""

    async def _compute(self, groups: Sequence[Group]) -> None:
        await asyncio.sleep(sum(len(group.completions) for group in groups) * self.pace.learn_s)


class Sandbox:
    """A sandbox of `workers` workers, each of which takes `program_s` seconds per program."""

    def __init__(self, workers: int, program_s: float) -> None:
        self.engine = SlotEngine(Pace(token_s=program_s, slots=workers))

    async def execute(self, programs: Sequence[Any]) -> list[Any]:
        if programs:
            await self.engine.generate([1] * len(programs), 0)
        return [None] * len(programs)

    def take_executions(self) -> int:
        return 0


class NoLog:
    """A batch log that stores nothing."""

    def append(self, rollout: Any) -> None: ...

    def read(self, step: int, num_agents: int) -> Any:
        raise LookupError(f"batch {step} was not written")

    def drop_before(self, step: int) -> None: ...

    def prompt_samples(self, step: int) -> int:
        return 0
