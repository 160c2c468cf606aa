"""Running episodes.

At a node every agent samples a group of completions (`marl_ray.rollout.turn`), and the joint mode forms joint actions.
Their programs are executed, equal programs once, and outcomes become rewards. While turns remain, the handoff selects
joint actions to expand, and the transition writes their next prompts. No episode waits for another episode, and no
branch of a tree for its siblings, so engines batch across tasks, agents and turns.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol

from marl_ray.config import Config
from marl_ray.core.chat import Prompt, with_system_prompt
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import (
    Completion,
    Episode,
    Generation,
    JointAction,
    Node,
    Outcome,
    SamplingSpec,
    Stop,
    Task,
    Texts,
)
from marl_ray.core.random_streams import random_stream, stream_seed
from marl_ray.environments.base import Attempt, Environment, Executor, collect_programs, group_reports
from marl_ray.environments.plugin_checks import (
    check_order,
    check_prompts,
    check_reports,
    checked_outcome,
    qualified_method_name,
)
from marl_ray.external.transition import Transition
from marl_ray.models.json_schemas import schema_text
from marl_ray.rollout import HANDOFFS, JOINT_MODES
from marl_ray.rollout.baselines import Baselines, add_baselines
from marl_ray.rollout.turn import TurnResult, check_handoff, sample_turn
from marl_ray.rollout.unscored import NoVerdict, keep_joint_actions


class CompletionGenerator(Protocol):
    """One agent's generators. Of the waiting prompts, the prompt with the lowest `priority` is next. `history` is given
    if the prompt continues a conversation: the token ids of the conversation."""

    async def generate(
        self, prompt: Prompt, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation: ...


@dataclass(frozen=True, slots=True)
class _Run:
    """A running episode. `key` names its random streams."""

    task: Task
    first_prompts: list[Prompt]
    key: tuple[str | int, ...]
    group_sizes: Sequence[int]
    """G of each turn."""
    evaluation: bool
    on_node: Callable[[Node], None]
    """Called with each node as soon as it has its rewards."""
    priority: int
    stops: list[Stop] = field(default_factory=list)
    control_tokens: list[int] = field(default_factory=list)
    """The number of each generation."""
    unscored: list[Outcome] = field(default_factory=list)
    reward_calls: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Input:
    """The agents' prompts of a turn, and the token ids of the conversations that they continue; empty without one."""

    prompts: list[Prompt]
    histories: list[tuple[int, ...]]


class RolloutListener(Protocol):
    """Receives the nodes and episodes of a batch while it is rolled out. `index` counts the batch's episodes from 0."""

    def add_node(self, index: int, node: Node) -> None: ...

    def add_episode(self, index: int, episode: Episode) -> None: ...


class EpisodeRunner:
    """Runs episodes with the configured turns, joint mode, handoff and rewards."""

    def __init__(
        self,
        config: Config,
        environment: Environment,
        transition: Transition,
        generators: Sequence[CompletionGenerator],
        executor: Executor,
    ) -> None:
        self.config = config
        self.environment = environment
        self.transition = transition
        self.generators = generators
        self.executor = executor
        self.joint_actions = JOINT_MODES.get(config.rollout.joint_mode)
        self.handoff = HANDOFFS.get(config.rollout.handoff)
        self.baselines = Baselines(config)

    async def run_batch(self, tasks: Sequence[Task], step: int, listener: RolloutListener) -> list[Episode]:
        """Return the episodes of training step `step` (from 0), and report them to `listener` while they run."""

        sizes = self.config.rollout.group_sizes

        async def run(index: int, task: Task) -> Episode:
            on_node = partial(listener.add_node, index)
            episode = await self.run_episode(task, sizes, "train", step, on_node=on_node, priority=step)
            listener.add_episode(index, episode)
            return episode

        return await gather(*(run(index, task) for index, task in enumerate(tasks)))

    async def evaluate(self, tasks: Sequence[Task]) -> list[Episode]:
        """Return the episodes of an evaluation during training."""
        size = self.config.evaluation.eval_num_generations
        return await gather(*(self.evaluate_task(task, size) for task in tasks))

    async def evaluate_task(self, task: Task, num_generations: int, sample: int = 0) -> Episode:
        """Return an evaluation episode, sampled at `eval_temperature` (0: greedy).

        It does not end early for a high reward, so that every turn is measured on all tasks. `sample` (from 0) selects
        one of several independent episodes; training uses the first.
        """
        key = ("eval", sample) if sample else ("eval",)  # the first sample's stream is the one during training
        return await self.run_episode(task, num_generations, *key, evaluation=True)

    async def run_episode(
        self,
        task: Task,
        num_generations: int | Sequence[int],
        *key: str | int,
        evaluation: bool = False,
        on_node: Callable[[Node], None] = lambda node: None,
        priority: int = 0,
    ) -> Episode:
        """Return one episode with groups of `num_generations`, a number or one per turn. `key` names its streams."""
        if isinstance(num_generations, int):
            group_sizes: Sequence[int] = (num_generations,) * self.config.rollout.num_turns
        else:
            group_sizes = num_generations
        given = self.environment.first_prompts(task)
        check_prompts(qualified_method_name(self.environment, "first_prompts"), given, self.config.num_agents)
        first_prompts = list(given)
        run = _Run(task, first_prompts, (*key, task.id), group_sizes, evaluation, on_node, priority)
        root = await self._run_node(run, _Input(first_prompts, [()] * len(first_prompts)), ())
        stops = sorted(run.stops, key=lambda stop: stop.path)  # branches end in any order
        return Episode(task, root, stops, sum(run.control_tokens), run.unscored, sum(run.reward_calls))

    async def _run_node(self, run: _Run, given: _Input, path: tuple[int, ...]) -> Node | None:
        """Return the node at `path` with all nodes below it. Return None if it failed, with a `Stop` in `run.stops`."""
        turn = len(path)
        last = turn + 1 == self.config.rollout.num_turns
        # With one expanded joint action per node the turn identifies the node; in a whole tree the path does.
        key: tuple[str | int, ...] = (*run.key, turn)
        if self.config.rollout.handoff == "all":
            key += path
        sampled, greedy = await gather(self._sample(run, given, turn, key), self._sample_greedy(run, given, key))
        if sampled is None:
            run.stops.append(Stop(path, "prompt_too_long"))
            return None
        attempts: list[Attempt] = []
        for indices in sampled.indices:
            texts = [calls[index].completion.text for calls, index in zip(sampled.calls, indices, strict=True)]
            attempts.append(self.environment.attempt(run.task, texts, last))
        probing = self.config.output.probe_helpers
        probe = probing == "always" or (probing == "eval" and run.evaluation)
        try:
            outcomes = await self._evaluate_attempts(run, attempts, probe)
            actions: list[JointAction] = []
            for indices, outcome in zip(sampled.indices, outcomes, strict=True):
                actions.append(self._rewarded(indices, outcome))
            node = Node(turn, sampled.calls, actions)
            # A joint action without a reward leaves its group; the siblings are compared without it.
            scored = [g for g, outcome in enumerate(outcomes) if not outcome.unscored]
            if len(scored) < len(outcomes):
                node = keep_joint_actions(node, scored)
                attempts = [attempts[g] for g in scored]
            if not run.evaluation:
                await add_baselines(node, greedy, self.baselines, partial(self._reward_joint, run, last))
        except NoVerdict as lost:
            run.stops.append(Stop(path, lost.reason, str(lost)))
            return None
        run.on_node(node)
        rewards = [action.reward for action in node.joint_actions]
        if last:
            return node
        # An evaluation plays every turn, so that turns are measured on the same tasks.
        threshold = None if run.evaluation else self.config.rollout.early_termination_threshold
        if threshold is not None and sum(rewards) / len(rewards) > threshold:
            run.stops.append(Stop(path, "early_termination"))
            return node
        chosen = self.handoff(rewards, random_stream(self.config.seed, *key))
        check_handoff(self.config.rollout.handoff, chosen, len(rewards))
        if self.config.external.stop != "never":
            chosen = self._end_solved(run, node, attempts, chosen, path)
        await gather(*(self._expand(run, node, g, attempts[g], path) for g in chosen))
        return node

    def _end_solved(
        self, run: _Run, node: Node, attempts: Sequence[Attempt], chosen: Sequence[int], path: tuple[int, ...]
    ) -> list[int]:
        """End the branches of chosen joint actions that solve the task, and return the others."""
        turns_left = self.config.rollout.num_turns - node.turn - 1
        scope = self.config.external.stop
        going_on: list[int] = []
        for g in chosen:
            if self.environment.solved(attempts[g], node.joint_actions[g].outcome, scope):
                node.stopped[g] = turns_left
                run.stops.append(Stop((*path, g), "solved"))
            else:
                going_on.append(g)
        return going_on

    async def _sample(self, run: _Run, given: _Input, turn: int, key: tuple[str | int, ...]) -> TurnResult | None:
        """Return the completions of this turn, or None if a prompt is too long."""
        environment = self.environment
        task = run.task
        order = environment.order(task)
        check_order(qualified_method_name(environment, "order"), order, self.config.num_agents)

        def generate(agent: int, prompt: Prompt, branch: int) -> Awaitable[Generation]:
            sampling = self.sampling(run.evaluation, agent, key, run.group_sizes[turn])
            if branch:  # a continuation for the reward of one earlier completion
                sampling = replace(sampling, num_generations=1, seed=stream_seed(sampling.seed, "line", branch))
            return self._generate(agent, prompt, sampling, run, given.histories[agent])

        def prompt_after(agent: int, prompt: Prompt, earlier: Mapping[int, str]) -> Prompt:
            later = environment.prompt_after(task, agent, prompt, earlier)
            check_prompts(qualified_method_name(environment, "prompt_after"), [later])
            return later

        return await sample_turn(order, given.prompts, generate, prompt_after, self.joint_actions)

    async def _expand(self, run: _Run, node: Node, index: int, attempt: Attempt, path: tuple[int, ...]) -> None:
        """Run the turn that follows one joint action of `node`."""
        outcome = node.joint_actions[index].outcome
        observations = await self.transition.next_prompts(run.task, run.first_prompts, attempt, outcome)
        node.transitions[index] = observations.metrics
        histories: list[tuple[int, ...]] = [()] * len(observations.prompts)
        if self.config.external.composition == "chat":
            histories = [call.conversation for call in node.answers(node.joint_actions[index])]
        child = await self._run_node(run, _Input(observations.prompts, histories), (*path, index))
        if child is not None:
            node.children[index] = child

    async def _generate(
        self, agent: int, prompt: Prompt, sampling: SamplingSpec, run: _Run, history: tuple[int, ...]
    ) -> Generation:
        """Sample an agent's group, after its conversation, or else after its system prompt."""
        if history:  # the conversation begins with the system prompt already
            generation = await self.generators[agent].generate(prompt, sampling, run.priority, history)
        else:
            prompt = with_system_prompt(prompt, self.config.agents[agent].system_prompt)
            generation = await self.generators[agent].generate(prompt, sampling, run.priority)
        run.control_tokens.append(generation.control_tokens)
        return generation

    async def _sample_greedy(self, run: _Run, given: _Input, key: tuple[str | int, ...]) -> list[Completion]:
        """Return every agent's greedy completion; none if no estimator needs them or a prompt is too long."""
        if run.evaluation or not self.baselines.greedy:
            return []
        requests: list[Awaitable[Generation]] = []
        for agent, prompt in enumerate(given.prompts):
            sampling = self.sampling(run.evaluation, agent, key, 1)
            # The most probable token does not depend on a truncation; without one, log-probabilities are the model's.
            sampling = replace(sampling, temperature=0.0, top_p=1.0, top_k=None)
            requests.append(self._generate(agent, prompt, sampling, run, given.histories[agent]))
        completions: list[Completion] = []
        for generation in await gather(*requests):
            completions += generation.completions
        return completions

    async def _reward_joint(self, run: _Run, last: bool, joint: Sequence[Texts]) -> dict[Texts, JointAction]:
        """Return the joint actions of these texts with their rewards. Raises NoVerdict if one has no reward."""
        attempts = [self.environment.attempt(run.task, list(texts), last) for texts in joint]
        rewarded: dict[Texts, JointAction] = {}
        for texts, outcome in zip(joint, await self._evaluate_attempts(run, attempts), strict=True):
            if outcome.unscored:
                raise NoVerdict("unscored", f"a joint action of a baseline has no reward: {outcome.failure}")
            rewarded[texts] = self._rewarded((), outcome)
        return rewarded

    async def _evaluate_attempts(self, run: _Run, attempts: Sequence[Attempt], probe: bool = False) -> list[Outcome]:
        """Return the outcomes, some of which may be unscored. Raises NoVerdict if an execution failed."""
        outcomes = await self.outcomes(attempts, probe)
        run.reward_calls.append(len(outcomes))
        for outcome in outcomes:
            if outcome.unscored:  # left out alone
                run.unscored.append(outcome)
            elif outcome.failure:  # a failed sandbox says nothing about any answer of the node
                raise NoVerdict("infra_error", outcome.failure)
        return outcomes

    async def rewards_of(self, task: Task, joint: Sequence[Sequence[str]]) -> list[float]:
        """Return the reward of each joint answer to the first prompts, NaN without a verdict."""
        last = self.config.rollout.num_turns == 1
        attempts = [self.environment.attempt(task, list(texts), last) for texts in joint]
        rewards: list[float] = []
        for outcome in await self.outcomes(attempts):
            rewards.append(math.nan if outcome.failure else self._processed(outcome.reward))
        return rewards

    def score(self, task: Task, texts: Sequence[str], last: bool) -> JointAction | None:
        """Return a joint answer with its reward, in an environment without programs; None without a verdict."""
        attempt = self.environment.attempt(task, list(texts), last)
        outcome = checked_outcome(self.environment, "outcome", self.environment.outcome(attempt, None))
        return None if outcome.failure else self._rewarded((), outcome)

    async def outcomes(self, attempts: Sequence[Attempt], probe: bool = False) -> list[Outcome]:
        """Return each attempt's outcome, from one execution of its programs."""
        of_attempt = group_reports(attempts, await self._execute(collect_programs(attempts)))
        outcomes: list[Outcome] = []
        for attempt, report in zip(attempts, of_attempt, strict=True):
            outcomes.append(checked_outcome(self.environment, "outcome", self.environment.outcome(attempt, report)))
        if not probe and not self.environment.pays_probes:
            return outcomes
        return await self._probe(attempts, of_attempt, outcomes)

    async def _probe(
        self, attempts: Sequence[Attempt], reports: Sequence[Any], outcomes: Sequence[Outcome]
    ) -> list[Outcome]:
        """Return the outcomes after executing each attempt's probes."""
        probes: list[list[Any]] = []
        for attempt, report in zip(attempts, reports, strict=True):
            probes.append(list(self.environment.probes(attempt, report)))
        # One execution for all attempts; its results are in the order of the programs.
        results = iter(await self._execute(list(chain.from_iterable(probes))))
        probed: list[Outcome] = []
        for attempt, report, outcome, programs in zip(attempts, reports, outcomes, probes, strict=True):
            after = self.environment.probed_outcome(attempt, report, outcome, list(islice(results, len(programs))))
            probed.append(checked_outcome(self.environment, "probed", after))
        return probed

    async def _execute(self, programs: list[Any]) -> list[Any]:
        reports = await self.environment.execute(programs, self.executor)
        check_reports(qualified_method_name(self.environment, "execute"), reports, len(programs))
        return reports

    def _rewarded(self, indices: tuple[int, ...], outcome: Outcome) -> JointAction:
        rewards = outcome.rewards or (outcome.reward,) * self.config.num_agents
        return JointAction(indices, outcome, self._processed(outcome.reward), tuple(map(self._processed, rewards)))

    def _processed(self, reward: float) -> float:
        processor = self.config.reward_processor
        if not processor.enabled:
            return reward
        return reward * processor.scale_factor + processor.shift

    def sampling(self, evaluation: bool, agent: int, key: tuple[str | int, ...], num_generations: int) -> SamplingSpec:
        """Return the sampling parameters of a group, whose random stream is called `key`."""
        settings = self.config.agents[agent]
        temperature = settings.temperature
        if evaluation and self.config.evaluation.eval_temperature is not None:
            temperature = self.config.evaluation.eval_temperature
        return SamplingSpec(
            num_generations=num_generations,
            max_new_tokens=settings.max_new_tokens,
            temperature=temperature,
            top_p=settings.top_p,
            top_k=self.config.model.top_k,
            seed=stream_seed(self.config.seed, "sampling", *key, agent),
            min_new_tokens=settings.min_new_tokens,
            stop=settings.stop,
            template_kwargs=settings.chat_template_kwargs,
            json_schema=schema_text(settings.json_schema),
        )


def make_runner(
    config: Config,
    environment: Environment,
    transition: Transition,
    generators: Sequence[CompletionGenerator],
    executor: Executor,
) -> EpisodeRunner:
    """Return the runner of an environment: its own, or one that plays turns."""
    runner = environment.make_runner(config, transition, generators, executor)
    return runner or EpisodeRunner(config, environment, transition, generators, executor)
