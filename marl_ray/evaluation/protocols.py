"""Communication protocols of an evaluation: the order of responses, and the responses that each agent reads.

| protocol | agents |
|---|---|
| parallel | respond at the same time, as trained, unless the environment has an order of its own |
| single | the last agent alone, with the prompts of a single agent |
| sequential | respond in order; each reads the responses of the agents before it in this turn |
| discussion | respond, read the responses of all others, and respond again; only the second response counts |

`sequential` and `discussion` change prompts on their way to the generators. Environment, episode runner and sandbox
are unaffected, and episode records keep the environment's prompts.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from marl_ray.core.episode import Generation, SamplingSpec
from marl_ray.core.random_streams import stream_seed
from marl_ray.rollout.episode_runner import CompletionGenerator

Responses = defaultdict[tuple[int, int], "asyncio.Future[str]"]
"""The response of each agent by (turn, agent), as a future that readers may await before it exists."""


@dataclass(slots=True)
class _ProtocolGenerator:
    """The generators of one agent in one episode; called once per turn."""

    agent: int
    read_from: range
    """Agents whose responses this agent reads."""
    generators: CompletionGenerator
    responses: Responses
    turn: int = field(default=0, init=False)

    async def with_responses(self, prompt: str) -> str:
        """Return the prompt after the other agents' responses of this turn."""
        others = [await self.responses[self.turn, other] for other in self.read_from if other != self.agent]
        return "".join(f"Another agent has answered:\n{response.strip()}\n\n" for response in others) + prompt

    def share(self, generation: Generation) -> None:
        """Make the first completion readable; an empty text if the prompt was too long."""
        texts = [completion.text for completion in generation.completions[:1]]
        self.responses[self.turn, self.agent].set_result("".join(texts))


class _Sequential(_ProtocolGenerator):
    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        generation = await self.generators.generate(await self.with_responses(prompt), sampling, priority)
        self.share(generation)
        self.turn += 1
        return generation


class _Discussion(_ProtocolGenerator):
    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        draft = replace(sampling, num_generations=1, seed=stream_seed(sampling.seed, "draft"))
        self.share(await self.generators.generate(prompt, draft, priority))
        generation = await self.generators.generate(await self.with_responses(prompt), sampling, priority)
        self.turn += 1
        return generation


def parallel(generators: Sequence[CompletionGenerator]) -> list[CompletionGenerator]:
    """Return the generators unchanged."""
    return list(generators)


def sequential(generators: Sequence[CompletionGenerator]) -> list[CompletionGenerator]:
    """Return generators for one episode in which agents respond in order."""
    responses = _no_responses()
    return [_Sequential(agent, range(agent), own, responses) for agent, own in enumerate(generators)]


def discussion(generators: Sequence[CompletionGenerator]) -> list[CompletionGenerator]:
    """Return generators for one episode in which agents exchange drafts in every turn."""
    responses, everyone = _no_responses(), range(len(generators))
    return [_Discussion(agent, everyone, own, responses) for agent, own in enumerate(generators)]


def _no_responses() -> Responses:
    return defaultdict(lambda: asyncio.get_running_loop().create_future())


SINGLE = "single"
PROTOCOLS: dict[str, Callable[[Sequence[CompletionGenerator]], list[CompletionGenerator]]] = {
    "parallel": parallel,
    SINGLE: parallel,
    "sequential": sequential,
    "discussion": discussion,
}
"""Wrappers of an episode's generators. `single` has one agent and needs no wrapper."""
REORDERING = ("sequential", "discussion")
"""Protocols in which agents wait for each other, which excludes environments with an order of their own."""
