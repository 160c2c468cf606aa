"""Players produce episodes. `TurnPlayer` plays turns of prompts and answers; programs have players of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from marl_ray.config import Config
from marl_ray.core.chat import Prompt
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import Episode, Generation, Node, SamplingSpec, Task
from marl_ray.core.random_streams import stream_seed
from marl_ray.models.json_schemas import schema_text


class CompletionGenerator(Protocol):
    """One agent's generators. Of the waiting prompts, the prompt with the lowest `priority` is next. `history` is given
    if the prompt continues a conversation: the token ids of the conversation."""

    async def generate(
        self, prompt: Prompt, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation: ...


class RolloutListener(Protocol):
    """Receives the nodes and episodes of a batch while it is rolled out. `index` counts the batch's episodes from 0."""

    def add_node(self, index: int, node: Node) -> None: ...

    def add_episode(self, index: int, episode: Episode) -> None: ...


class Player(ABC):
    """Plays the episodes of a run. No episode waits for another episode, so that engines batch across tasks."""

    def __init__(self, config: Config) -> None:
        self.config = config

    async def run_batch(self, tasks: Sequence[Task], step: int, listener: RolloutListener) -> list[Episode]:
        """Return the episodes of training step `step` (from 0), and report them to `listener` while they run."""

        sizes = self.config.training.group_sizes

        async def run(index: int, task: Task) -> Episode:
            on_node = partial(listener.add_node, index)
            episode = await self.run_episode(task, sizes, "train", step, on_node=on_node, priority=step)
            listener.add_episode(index, episode)
            return episode

        return await gather(*(run(index, task) for index, task in enumerate(tasks)))

    async def evaluate(self, tasks: Sequence[Task]) -> list[Episode]:
        """Return the episodes of an evaluation during training."""
        size = self.config.training.eval_num_generations
        return await gather(*(self.evaluate_task(task, size) for task in tasks))

    async def evaluate_task(self, task: Task, num_generations: int, sample: int = 0) -> Episode:
        """Return an evaluation episode, sampled at `eval_temperature` (0: greedy).

        It does not end early for a high reward, so that every turn is measured on all tasks. `sample` (from 0) selects
        one of several independent episodes; training uses the first.
        """
        key = ("eval", sample) if sample else ("eval",)  # the first sample's stream is the one during training
        return await self.run_episode(task, num_generations, *key, evaluation=True)

    @abstractmethod
    async def run_episode(
        self,
        task: Task,
        num_generations: int | Sequence[int],
        *key: str | int,
        evaluation: bool = False,
        on_node: Callable[[Node], None] = lambda node: None,
        priority: int = 0,
    ) -> Episode:
        """Return one episode with groups of `num_generations`, a number or one per turn. `key` names its random
        streams. `on_node` receives each node as soon as it has its rewards."""


def sampling_of(
    config: Config, agent: int, evaluation: bool, key: tuple[str | int, ...], num_generations: int
) -> SamplingSpec:
    """Return the sampling parameters of an agent's group, whose random stream is called `key`."""
    settings = config.agents[agent]
    temperature = settings.temperature
    if evaluation and config.training.eval_temperature is not None:
        temperature = config.training.eval_temperature
    return SamplingSpec(
        num_generations=num_generations,
        max_new_tokens=settings.max_new_tokens,
        temperature=temperature,
        top_p=settings.top_p,
        top_k=config.model.top_k,
        seed=stream_seed(config.seed, "sampling", *key, agent),
        min_new_tokens=settings.min_new_tokens,
        stop=settings.stop,
        template_kwargs=settings.chat_template_kwargs,
        json_schema=schema_text(settings.json_schema),
    )
