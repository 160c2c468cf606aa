"""Playing episodes: many coroutines share the agents' engines and the sandbox.

An episode asks all agents for their groups at the same time, forms joint actions, executes the distinct
programs once, turns reports into rewards and, where a turn remains, into the next prompts. Engines batch
across tasks, agents and turns, and no episode waits for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from marl_ray.config.schema import Config
from marl_ray.messages import Assessment, Completion, Episode, JointAction, Observations, Task, TurnNode
from marl_ray.rollout.engine import SamplingSpec
from marl_ray.rollout.generator import Generation
from marl_ray.sandbox import ExecutionReport, Program
from marl_ray.streams import stream, stream_seed
from marl_ray.waiting import together


class Environment(Protocol):
    """What a kind of task means; see `marl_ray.environments`."""

    def first_prompts(self, task: Task) -> list[str]: ...

    def program(self, task: Task, responses: Sequence[str]) -> Program: ...

    def assess(self, task: Task, responses: Sequence[str], report: ExecutionReport) -> Assessment: ...


class Transition(Protocol):
    """What the agents hear next; see `marl_ray.external`."""

    async def next_prompts(
        self, task: Task, first_prompts: list[str], responses: Sequence[str], report: ExecutionReport
    ) -> Observations: ...


class Executor(Protocol):
    """The sandbox pool."""

    async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]: ...


class AgentGenerators:
    """The replicas of one agent; a request goes to the one with the fewest sequences in flight."""

    def __init__(self, actors: list[Any]) -> None:
        self.actors = actors
        self._in_flight = [0] * len(actors)

    async def generate(self, prompt: str, sampling: SamplingSpec) -> Generation:
        """Sample a group."""
        index = min(range(len(self.actors)), key=self._in_flight.__getitem__)
        self._in_flight[index] += sampling.num_generations
        try:
            return await self.actors[index].generate.remote(prompt, sampling)
        finally:
            self._in_flight[index] -= sampling.num_generations


class EpisodePlayer:
    """Plays episodes with the config's turns, handoff and rewards."""

    def __init__(
        self,
        config: Config,
        environment: Environment,
        transition: Transition,
        agents: list[AgentGenerators],
        sandbox: Executor,
    ) -> None:
        self.config = config
        self.environment = environment
        self.transition = transition
        self.agents = agents
        self.sandbox = sandbox

    async def play_all(self, tasks: Sequence[Task], num_generations: int, *key: str | int) -> list[Episode]:
        """One episode a task, all at the same time, in the tasks' order. `key` names the random stream."""
        return await together(*(self.play(task, num_generations, *key) for task in tasks))

    async def play(self, task: Task, num_generations: int, *key: str | int) -> Episode:
        """One episode."""
        algorithm = self.config.algorithm
        first_prompts = self.environment.first_prompts(task)
        prompts = first_prompts
        episode = Episode(task, [])
        for turn in range(algorithm.num_turns):
            generations = await together(
                *(
                    agent.generate(prompt, self._sampling(num_generations, *key, task.id, turn, index))
                    for index, (agent, prompt) in enumerate(zip(self.agents, prompts, strict=True))
                )
            )
            if not all(g.completions for g in generations):
                episode.stopped = "prompt_too_long"
                return episode
            actions = await self._act(task, [g.completions for g in generations])
            failure = next((a.report.infra_error for a in actions if a.report.infra_error), None)
            if failure is not None:
                episode.stopped, episode.detail = "infra_error", failure
                return episode
            node = TurnNode(
                turn=turn,
                prompts=prompts,
                prompt_ids=[g.prompt_ids for g in generations],
                completions=[list(g.completions) for g in generations],
                joint_actions=actions,
            )
            episode.nodes.append(node)
            threshold = algorithm.early_termination_threshold
            if turn + 1 == algorithm.num_turns:
                return episode
            if threshold is not None and sum(a.reward for a in actions) / len(actions) > threshold:
                episode.stopped = "early_termination"
                return episode
            node.expanded = choose(actions, algorithm.handoff, stream(self.config.seed, *key, task.id, turn))
            chosen = actions[node.expanded]
            responses = responses_of(node.completions, chosen.indices)
            heard = await self.transition.next_prompts(task, first_prompts, responses, chosen.report)
            prompts, node.transition = heard.prompts, heard.metrics
        return episode

    async def _act(self, task: Task, groups: Sequence[Sequence[Completion]]) -> list[JointAction]:
        """Aligned joint actions of the agents' groups, executed and assessed."""
        tuples = [(g,) * len(groups) for g in range(len(groups[0]))]
        responses = [responses_of(groups, indices) for indices in tuples]
        reports = await self.sandbox.execute([self.environment.program(task, r) for r in responses])
        actions = []
        for indices, texts, report in zip(tuples, responses, reports, strict=True):
            assessment = self.environment.assess(task, texts, report)
            actions.append(JointAction(indices, report, assessment, self._reward(assessment)))
        return actions

    def _reward(self, assessment: Assessment) -> float:
        processor = self.config.reward_processor
        if not processor.enabled:
            return assessment.reward
        return assessment.reward * processor.scale_factor + processor.shift

    def _sampling(self, num_generations: int, *key: str | int) -> SamplingSpec:
        model = self.config.model
        return SamplingSpec(
            num_generations=num_generations,
            max_new_tokens=self.config.algorithm.max_new_tokens,
            temperature=model.temperature,
            top_p=model.top_p,
            top_k=model.top_k,
            seed=stream_seed(self.config.seed, "sampling", *key),
        )


def responses_of(groups: Sequence[Sequence[Completion]], indices: Sequence[int]) -> list[str]:
    """The texts of one joint action."""
    return [group[index].text for group, index in zip(groups, indices, strict=True)]


def choose(actions: Sequence[JointAction], handoff: str, rng: Any) -> int:
    """Index of the joint action the next turn goes on from; the first of equals is the best."""
    if handoff == "best":
        return max(range(len(actions)), key=lambda g: actions[g].reward)
    return rng.randrange(len(actions))
