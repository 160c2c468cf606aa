"""In which order the agents of an evaluation answer, and what they hear of each other within a turn.

`parallel`: as trained, all at the same time unless the environment has an order of its own. `single`: the last agent
alone, with the prompts of a single agent. `sequential`: one after another, each reads what those before it have
answered in this turn. `discussion`: each answers, reads what all others have answered, and answers once more; only that
counts.

The last two change prompts on their way to the generators, and nothing else: environment, player and sandbox do not
know of them, nor do the records of episodes, whose prompts are the environment's.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from marl_ray.core.episode import Generation, SamplingSpec
from marl_ray.core.random_streams import stream_seed
from marl_ray.rollout.episode_runner import CompletionGenerator

Answers = defaultdict[tuple[int, int], "asyncio.Future[str]"]
"""By turn and agent; whoever asks first makes the future."""


@dataclass(slots=True)
class _Speaker:
    """One agent's generators in one episode, in whose turns it is asked once each."""

    agent: int
    others: range
    own: CompletionGenerator
    answers: Answers
    turn: int = field(default=0, init=False)

    async def hear(self, prompt: str) -> str:
        """The prompt after what the others have answered in this turn."""
        heard = [await self.answers[self.turn, other] for other in self.others if other != self.agent]
        return "".join(f"Another agent has answered:\n{answer.strip()}\n\n" for answer in heard) + prompt

    def tell(self, generation: Generation) -> None:
        """Nothing is what the others hear of a prompt that was too long."""
        texts = [completion.text for completion in generation.completions[:1]]
        self.answers[self.turn, self.agent].set_result("".join(texts))


class _InOrder(_Speaker):
    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        generation = await self.own.generate(await self.hear(prompt), sampling, priority)
        self.tell(generation)
        self.turn += 1
        return generation


class _AfterDrafts(_Speaker):
    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        once = replace(sampling, num_generations=1, seed=stream_seed(sampling.seed, "draft"))
        self.tell(await self.own.generate(prompt, once, priority))
        generation = await self.own.generate(await self.hear(prompt), sampling, priority)
        self.turn += 1
        return generation


def parallel(generators: Sequence[CompletionGenerator]) -> list[CompletionGenerator]:
    """As they are."""
    return list(generators)


def sequential(generators: Sequence[CompletionGenerator]) -> list[CompletionGenerator]:
    """Those of an episode in which agents answer in their order."""
    answers = _no_answers()
    return [_InOrder(agent, range(agent), own, answers) for agent, own in enumerate(generators)]


def discussion(generators: Sequence[CompletionGenerator]) -> list[CompletionGenerator]:
    """Those of an episode in which agents exchange drafts in every turn."""
    answers, everyone = _no_answers(), range(len(generators))
    return [_AfterDrafts(agent, everyone, own, answers) for agent, own in enumerate(generators)]


def _no_answers() -> Answers:
    return defaultdict(lambda: asyncio.get_running_loop().create_future())


SINGLE = "single"
PROTOCOLS: dict[str, Callable[[Sequence[CompletionGenerator]], list[CompletionGenerator]]] = {
    "parallel": parallel,
    SINGLE: parallel,
    "sequential": sequential,
    "discussion": discussion,
}
"""What an episode's agents are asked through. With `single` there is one agent."""
REORDERING = ("sequential", "discussion")
"""Protocols that make agents wait for each other, which an environment's own order may rule out."""
