"""Playing episodes: many coroutines share the agents' engines and the environment's executor.

At a node all agents are asked for their groups at the same time; the joint mode makes joint actions of them; their
programs are executed, equal ones once; outcomes become rewards and, where a turn remains, the next prompts of the
joint actions that the handoff expands. Engines batch across tasks, agents and turns; no episode waits for another, and
no branch of a tree for its siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from marl_ray.config.schema import Config
from marl_ray.core.sampling import Generation, SamplingSpec
from marl_ray.core.streams import stream, stream_seed
from marl_ray.core.tree import Completion, Episode, JointAction, Node, Outcome, Stop, Task
from marl_ray.core.waiting import together
from marl_ray.environments.base import Attempt, Environment, programs_of, reports_of
from marl_ray.environments.checks import check_outcome, check_texts, check_turn_metrics, method_of
from marl_ray.external.transition import Transition
from marl_ray.rollout.handoff import HANDOFFS
from marl_ray.rollout.joint import JOINT_MODES


class Generators(Protocol):
    """One agent's generators; of prompts that wait those with the lowest `priority` come first."""

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation: ...


class Executor(Protocol):
    """Runs programs, for environments that have some."""

    async def execute(self, programs: Sequence[Any]) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class _Play:
    """One episode while it is played. `key` names its random streams."""

    task: Task
    first_prompts: list[str]
    key: tuple[str | int, ...]
    num_generations: int
    threshold: float | None
    """An episode ends at a node whose mean reward is above it."""
    temperature: float | None
    """None: each agent's own."""
    probe: bool
    hear_node: Callable[[Node], None]
    """Is told of each node as soon as it has its rewards."""
    priority: int
    stops: list[Stop] = field(default_factory=list)


class Audience(Protocol):
    """Hears of a batch while it is played. Draws count from 0."""

    def add_node(self, draw: int, node: Node) -> None: ...

    def add_episode(self, draw: int, episode: Episode) -> None: ...


class EpisodePlayer:
    """Plays episodes with the config's turns, joint mode, handoff and rewards."""

    def __init__(
        self,
        config: Config,
        environment: Environment,
        transition: Transition,
        generators: Sequence[Generators],
        executor: Executor,
    ) -> None:
        self.config = config
        self.environment = environment
        self.transition = transition
        self.generators = generators
        self.executor = executor
        self.joint_actions = JOINT_MODES[config.rollout.joint_mode]
        self.expanded = HANDOFFS[config.rollout.handoff]

    async def rollout(self, tasks: Sequence[Task], step: int, audience: Audience) -> list[Episode]:
        """The episodes of training step number `step` (from 0). Whatever they wait for has a deadline of its own."""

        async def play(draw: int, task: Task) -> Episode:
            episode = await self.play(
                task,
                self.config.rollout.num_generations,
                "train",
                step,
                hear_node=lambda node: audience.add_node(draw, node),
                priority=step,
            )
            audience.add_episode(draw, episode)
            return episode

        return await together(*(play(draw, task) for draw, task in enumerate(tasks)))

    async def evaluate(self, tasks: Sequence[Task]) -> list[Episode]:
        """The episodes of a training's evaluation."""
        size = self.config.evaluation.eval_num_generations
        return await together(*(self.evaluate_task(task, size) for task in tasks))

    async def evaluate_task(self, task: Task, num_generations: int, sample: int = 0) -> Episode:
        """An episode of an evaluation, a training's or `marl-ray eval`'s, sampled at `eval_temperature` (0: greedy): it
        does not end early for a good reward, so that every turn is measured on all tasks.

        `sample`, from 0, names one of several independent ones; a training plays the first.
        """
        key = ("eval", sample) if sample else ("eval",)
        return await self.play(task, num_generations, *key, evaluation=True)

    async def play(
        self,
        task: Task,
        num_generations: int,
        *key: str | int,
        evaluation: bool = False,
        hear_node: Callable[[Node], None] = lambda node: None,
        priority: int = 0,
    ) -> Episode:
        """One episode. `key` names its random streams."""
        first_prompts = self.environment.first_prompts(task)
        check_texts(method_of(self.environment, "first_prompts"), first_prompts, self.config.num_agents)
        play = _Play(
            task=task,
            first_prompts=first_prompts,
            key=(*key, task.id),
            num_generations=num_generations,
            threshold=None if evaluation else self.config.rollout.early_termination_threshold,
            temperature=self.config.evaluation.eval_temperature if evaluation else None,
            probe=self.config.output.probe_helpers in (("eval", "always") if evaluation else ("always",)),
            hear_node=hear_node,
            priority=priority,
        )
        root = await self._play_node(play, play.first_prompts, ())
        return Episode(task, root, sorted(play.stops, key=lambda stop: stop.path))

    async def _play_node(self, play: _Play, prompts: list[str], path: tuple[int, ...]) -> Node | None:
        """The node that `path` leads to, with all that is below it; None where it could not be played."""
        turn = len(path)
        last = turn + 1 == self.config.rollout.num_turns
        # Where one joint action a node is expanded, the turn names the node; in a whole tree it takes the path.
        key = (*play.key, turn, *(path if self.config.rollout.handoff == "all" else ()))
        generations = await together(
            *(
                generators.generate(prompt, self._sampling(play, agent, key), play.priority)
                for agent, (generators, prompt) in enumerate(zip(self.generators, prompts, strict=True))
            )
        )
        if not all(g.completions for g in generations):
            play.stops.append(Stop(path, "prompt_too_long"))
            return None
        groups = [list(g.completions) for g in generations]
        indices = self.joint_actions([len(group) for group in groups])
        attempts = [self.environment.attempt(play.task, responses_of(groups, i), last) for i in indices]
        outcomes = await self.outcomes(attempts, play.probe)
        failure = next((outcome.failure for outcome in outcomes if outcome.failure), "")
        if failure:
            play.stops.append(Stop(path, "infra_error", failure))
            return None
        actions = [self._rewarded(i, outcome) for i, outcome in zip(indices, outcomes, strict=True)]
        node = Node(turn, prompts, [g.prompt_ids for g in generations], groups, actions)
        play.hear_node(node)
        rewards = [action.reward for action in actions]
        if last:
            return node
        if play.threshold is not None and sum(rewards) / len(rewards) > play.threshold:
            play.stops.append(Stop(path, "early_termination"))
            return node
        chosen = self.expanded(rewards, stream(self.config.seed, *key))
        await together(*(self._expand(play, node, g, attempts[g], path) for g in chosen))
        return node

    async def _expand(self, play: _Play, node: Node, index: int, attempt: Attempt, path: tuple[int, ...]) -> None:
        """Go on from one joint action of `node`."""
        outcome = node.joint_actions[index].outcome
        heard = await self.transition.next_prompts(play.task, play.first_prompts, attempt, outcome)
        node.transitions[index] = heard.metrics
        child = await self._play_node(play, heard.prompts, (*path, index))
        if child is not None:
            node.children[index] = child

    async def outcomes(self, attempts: Sequence[Attempt], probe: bool = False) -> list[Outcome]:
        """Each attempt's outcome, from one execution of its program if it has one."""
        of_attempt = reports_of(attempts, await self.executor.execute(programs_of(attempts)))
        outcomes = [self.environment.outcome(a, report) for a, report in zip(attempts, of_attempt, strict=True)]
        for outcome in outcomes:
            check_outcome(method_of(self.environment, "outcome"), outcome, self.config.num_agents)
        return await self._probe(attempts, of_attempt, outcomes) if probe else outcomes

    async def _probe(
        self, attempts: Sequence[Attempt], reports: Sequence[Any], outcomes: Sequence[Outcome]
    ) -> list[Outcome]:
        """The outcomes with further metrics, from executing each attempt's probes."""
        probes = [self.environment.probes(a, report) for a, report in zip(attempts, reports, strict=True)]
        answers = iter(await self.executor.execute([program for several in probes for program in several]))
        found = [
            self.environment.probed(a, report, [next(answers) for _ in several])
            for a, report, several in zip(attempts, reports, probes, strict=True)
        ]
        for more in found:
            check_turn_metrics(method_of(self.environment, "probed"), more)
        return [replace(o, metrics={**o.metrics, **more}) for o, more in zip(outcomes, found, strict=True)]

    def _rewarded(self, indices: tuple[int, ...], outcome: Outcome) -> JointAction:
        own = outcome.rewards or (outcome.reward,) * len(indices)
        return JointAction(indices, outcome, self._processed(outcome.reward), tuple(map(self._processed, own)))

    def _processed(self, reward: float) -> float:
        processor = self.config.reward_processor
        return reward * processor.scale_factor + processor.shift if processor.enabled else reward

    def _sampling(self, play: _Play, agent: int, key: tuple[str | int, ...]) -> SamplingSpec:
        settings = self.config.agents[agent]
        return SamplingSpec(
            num_generations=play.num_generations,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature if play.temperature is None else play.temperature,
            top_p=settings.top_p,
            top_k=self.config.model.top_k,
            seed=stream_seed(self.config.seed, "sampling", *key, agent),
        )


def responses_of(groups: Sequence[Sequence[Completion]], indices: Sequence[int]) -> list[str]:
    """The texts of one joint action."""
    return [group[index].text for group, index in zip(groups, indices, strict=True)]
