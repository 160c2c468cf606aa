"""Communication protocols of an evaluation: the order of responses, and the responses that each agent reads.

| protocol | agents |
|---|---|
| parallel | respond at the same time, as trained, unless the environment has an order of its own |
| single | the last agent alone, with the prompts of a single agent |
| sequential | respond in order; each reads the responses of the agents before it in this turn |
| discussion | respond, read the responses of all others, and respond again; only the second response counts |

`sequential` and `discussion` change prompts on their way to the generators, but not in episode records.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from marl_ray.core.chat import Prompt, prepend
from marl_ray.core.episode import Generation, SamplingSpec
from marl_ray.core.random_streams import stream_seed
from marl_ray.rollout.player import CompletionGenerator

Responses = defaultdict[tuple[int, int], "asyncio.Future[str]"]
"""The response of each agent by (turn, agent), as a future that readers may await before it exists."""


@dataclass(slots=True)
class _ProtocolGenerator:
    """The generators of one agent in one episode; called once per turn."""

    agent: int
    read_from: range
    """Agents whose responses this agent reads."""
    shares_drafts: bool
    """Whether other agents read a draft instead of the response."""
    generators: CompletionGenerator
    responses: Responses
    turn: int = field(default=0, init=False)

    async def generate(
        self, prompt: Prompt, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation:
        if self.shares_drafts:
            draft = replace(sampling, num_generations=1, seed=stream_seed(sampling.seed, "draft"))
            self._share(await self.generators.generate(prompt, draft, priority, history))
        read = ""
        for other in self.read_from:
            if other != self.agent:
                response = await self.responses[self.turn, other]
                read += f"Another agent has answered:\n{response.strip()}\n\n"
        generation = await self.generators.generate(prepend(read, prompt), sampling, priority, history)
        if not self.shares_drafts:
            self._share(generation)
        self.turn += 1
        return generation

    def _share(self, generation: Generation) -> None:
        """Make the first completion readable; an empty text if the prompt was too long."""
        text = generation.completions[0].text if generation.completions else ""
        self.responses[self.turn, self.agent].set_result(text)


def _wrap(generators: Sequence[CompletionGenerator], shares_drafts: bool) -> list[CompletionGenerator]:
    """Return generators for one episode. With drafts agents read all others, otherwise only the agents before them."""
    responses = Responses(lambda: asyncio.get_running_loop().create_future())
    wrapped: list[CompletionGenerator] = []
    for agent, generator in enumerate(generators):
        read_from = range(len(generators) if shares_drafts else agent)
        wrapped.append(_ProtocolGenerator(agent, read_from, shares_drafts, generator, responses))
    return wrapped


SINGLE = "single"
PROTOCOLS: dict[str, Callable[[Sequence[CompletionGenerator]], list[CompletionGenerator]]] = {
    "parallel": list,
    SINGLE: list,
    "sequential": partial(_wrap, shares_drafts=False),
    "discussion": partial(_wrap, shares_drafts=True),
}
"""Wrappers of an episode's generators."""
REORDERING = ("sequential", "discussion")
"""Protocols in which agents wait for each other, which excludes environments with an order of their own."""
