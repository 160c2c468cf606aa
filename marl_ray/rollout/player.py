"""Playing episodes: many coroutines share the agents' engines and the sandbox.

An episode asks all agents for their groups at the same time, forms joint actions, executes the distinct
programs once, turns reports into rewards and, where a turn remains, into the next prompts. Engines batch
across tasks, agents and turns, and no episode waits for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from marl_ray.actors.engine import SamplingSpec
from marl_ray.actors.generator import Generation
from marl_ray.config.schema import Config
from marl_ray.core.messages import Assessment, Completion, Episode, JointAction, Observations, Task, TurnNode
from marl_ray.core.streams import stream, stream_seed
from marl_ray.core.waiting import together
from marl_ray.environments.diagnosis import SandboxSlice
from marl_ray.sandbox import ExecutionReport, Program


class Environment(Protocol):
    """What a kind of task means; see `marl_ray.environments`."""

    def first_prompts(self, task: Task) -> list[str]: ...

    def program(self, task: Task, responses: Sequence[str], sandbox_slice: SandboxSlice) -> Program: ...

    def assess(self, task: Task, responses: Sequence[str], report: ExecutionReport) -> Assessment: ...

    def probes(self, task: Task, responses: Sequence[str], report: ExecutionReport) -> list[Program]: ...

    def probed(self, report: ExecutionReport, probes: Sequence[ExecutionReport]) -> dict[str, float]: ...


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

    async def play_all(
        self, tasks: Sequence[Task], num_generations: int, *key: str | int, evaluation: bool = False
    ) -> list[Episode]:
        """One episode a task, all at the same time, in the tasks' order. `key` names the random stream.

        In an evaluation no episode ends early for a good reward: every turn is measured on all tasks.
        """
        return await together(*(self.play(task, num_generations, *key, evaluation=evaluation) for task in tasks))

    async def play(self, task: Task, num_generations: int, *key: str | int, evaluation: bool = False) -> Episode:
        """One episode."""
        algorithm = self.config.algorithm
        threshold = None if evaluation else algorithm.early_termination_threshold
        probe = self.config.output.probe_helpers in (("eval", "always") if evaluation else ("always",))
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
            last = turn + 1 == algorithm.num_turns
            told: SandboxSlice = "all" if last else self.config.external.sandbox_slice
            actions = await self._act(task, [g.completions for g in generations], told, probe)
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
            if last:
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

    async def _act(
        self, task: Task, groups: Sequence[Sequence[Completion]], told: SandboxSlice, probe: bool
    ) -> list[JointAction]:
        """Aligned joint actions of the agents' groups, executed and assessed. `told`: tests that feedback tells of."""
        tuples = [(g,) * len(groups) for g in range(len(groups[0]))]
        responses = [responses_of(groups, indices) for indices in tuples]
        reports = await self.sandbox.execute([self.environment.program(task, r, told) for r in responses])
        assessments = [self.environment.assess(task, t, r) for t, r in zip(responses, reports, strict=True)]
        if probe:
            found = await self._probe(task, responses, reports)
            assessments = [replace(a, metrics=a.metrics | m) for a, m in zip(assessments, found, strict=True)]
        return [
            JointAction(indices, report, assessment, self._reward(assessment))
            for indices, report, assessment in zip(tuples, reports, assessments, strict=True)
        ]

    async def _probe(
        self, task: Task, responses: Sequence[Sequence[str]], reports: Sequence[ExecutionReport]
    ) -> list[dict[str, float]]:
        """Each joint action's further metrics, from executing its probes."""
        probes = [self.environment.probes(task, t, r) for t, r in zip(responses, reports, strict=True)]
        answers = iter(await self.sandbox.execute([program for several in probes for program in several]))
        return [
            self.environment.probed(report, [next(answers) for _ in several])
            for report, several in zip(reports, probes, strict=True)
        ]

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
