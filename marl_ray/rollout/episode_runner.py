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
from statistics import fmean
from typing import Any, Protocol

from marl_ray.config import Config
from marl_ray.core.chat import Prompt, with_system_prompt
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import (
    Completion,
    Episode,
    Generation,
    GreedySample,
    JointAction,
    Node,
    Outcome,
    SamplingSpec,
    Stop,
    Task,
    joint_texts,
)
from marl_ray.core.random_streams import random_stream, stream_seed
from marl_ray.credit.requirements import estimator_requirements
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
from marl_ray.rollout.coalitions import coalition_texts, counterfactual_texts, shapley_value
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
        self.config, self.environment, self.transition = config, environment, transition
        self.generators, self.executor = generators, executor
        self.joint_actions = JOINT_MODES.get(config.rollout.joint_mode)
        self.handoff = HANDOFFS.get(config.rollout.handoff)
        needs = [estimator_requirements(agent.estimator) for agent in config.agents]
        self.greedy = any(need.greedy_sample for need in needs)
        """Whether nodes have a greedy joint sample."""
        self.counterfactual_agents = [agent for agent, need in enumerate(needs) if need.counterfactual_sample]
        self.coalition_agents = [agent for agent, need in enumerate(needs) if need.coalition_samples]

    async def run_batch(self, tasks: Sequence[Task], step: int, listener: RolloutListener) -> list[Episode]:
        """Return the episodes of training step `step` (from 0), and report them to `listener` while they run."""

        async def run(index: int, task: Task) -> Episode:
            sizes, on_node = self.config.rollout.group_sizes, partial(listener.add_node, index)
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
        key = ("eval", sample) if sample else ("eval",)
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
        sizes = num_generations
        group_sizes = (sizes,) * self.config.rollout.num_turns if isinstance(sizes, int) else sizes
        given = self.environment.first_prompts(task)
        check_prompts(qualified_method_name(self.environment, "first_prompts"), given, self.config.num_agents)
        first_prompts = list(given)
        run = _Run(task, first_prompts, (*key, task.id), group_sizes, evaluation, on_node, priority)
        root = await self._run_node(run, _Input(first_prompts, [()] * len(first_prompts)), ())
        stops = sorted(run.stops, key=lambda stop: stop.path)
        return Episode(task, root, stops, sum(run.control_tokens), run.unscored, sum(run.reward_calls))

    async def _run_node(self, run: _Run, given: _Input, path: tuple[int, ...]) -> Node | None:
        """Return the node at `path` with all nodes below it. Return None if it failed, with a `Stop` in `run.stops`."""
        turn = len(path)
        last = turn + 1 == self.config.rollout.num_turns
        # With one expanded joint action per node the turn identifies the node; in a whole tree the path does.
        key = (*run.key, turn, *(path if self.config.rollout.handoff == "all" else ()))
        sampled, greedy = await gather(self._sample(run, given, turn, key), self._sample_greedy(run, given, key))
        if sampled is None:
            run.stops.append(Stop(path, "prompt_too_long"))
            return None
        completions, indices = sampled.completions, sampled.indices
        attempts = [self.environment.attempt(run.task, list(joint_texts(completions, i)), last) for i in indices]
        probe = self.config.output.probe_helpers in (("eval", "always") if run.evaluation else ("always",))
        try:
            outcomes = await self._evaluate_attempts(run, attempts, probe)
            actions = [self._rewarded(i, outcome) for i, outcome in zip(indices, outcomes, strict=True)]
            node = Node(turn, sampled.prompts, sampled.prompt_ids, completions, actions)
            node.other_prompts, node.other_prompt_ids = sampled.other_prompts, sampled.other_prompt_ids
            scored = [g for g, outcome in enumerate(outcomes) if not outcome.unscored]
            if len(scored) < len(outcomes):
                node = keep_joint_actions(node, scored)
                attempts = [attempts[g] for g in scored]
            if not run.evaluation:
                await self._add_baselines(run, node, greedy, last)
        except NoVerdict as lost:
            run.stops.append(Stop(path, lost.reason, str(lost)))
            return None
        run.on_node(node)
        rewards = [action.reward for action in node.joint_actions]
        if last:
            return node
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
        solved = [g for g in chosen if self.environment.solved(attempts[g], node.joint_actions[g].outcome, scope)]
        node.stopped = dict.fromkeys(solved, turns_left)
        run.stops.extend(Stop((*path, g), "solved") for g in solved)
        return [g for g in chosen if g not in node.stopped]

    async def _sample(self, run: _Run, given: _Input, turn: int, key: tuple[str | int, ...]) -> TurnResult | None:
        """Return the completions of this turn, or None if a prompt is too long."""
        environment, task = self.environment, run.task
        order = environment.order(task)
        check_order(qualified_method_name(environment, "order"), order, self.config.num_agents)

        def generate(agent: int, prompt: Prompt, branch: int) -> Awaitable[Generation]:
            sampling = self.sampling(run.evaluation, agent, key, run.group_sizes[turn])
            if branch:
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
            indices = node.joint_actions[index].indices
            histories = [node.conversation(agent, own) for agent, own in enumerate(indices)]
        child = await self._run_node(run, _Input(observations.prompts, histories), (*path, index))
        if child is not None:
            node.children[index] = child

    async def _generate(
        self, agent: int, prompt: Prompt, sampling: SamplingSpec, run: _Run, history: tuple[int, ...]
    ) -> Generation:
        """Sample an agent's group, after its conversation, or else after its system prompt."""
        if history:
            generation = await self.generators[agent].generate(prompt, sampling, run.priority, history)
        else:
            prompt = with_system_prompt(prompt, self.config.agents[agent].system_prompt)
            generation = await self.generators[agent].generate(prompt, sampling, run.priority)
        run.control_tokens.append(generation.control_tokens)
        return generation

    async def _sample_greedy(self, run: _Run, given: _Input, key: tuple[str | int, ...]) -> list[Completion]:
        """Return every agent's greedy completion; none if no estimator needs them or a prompt is too long."""
        if run.evaluation or not self.greedy:
            return []
        samplings = [
            replace(self.sampling(run.evaluation, agent, key, 1), temperature=0.0, top_p=1.0, top_k=None)
            for agent in range(len(given.prompts))
        ]
        requests = enumerate(zip(given.prompts, samplings, given.histories, strict=True))
        generations = await gather(*(self._generate(agent, p, s, run, history) for agent, (p, s, history) in requests))
        return [completion for generation in generations for completion in generation.completions]

    async def _add_baselines(self, run: _Run, node: Node, greedy: Sequence[Completion], last: bool) -> None:
        """Add the rewards that the estimators need beside the node's joint actions. Raises NoVerdict."""
        kind = self.config.credit.counterfactual
        counterfactual = {agent: counterfactual_texts(node, agent, kind) for agent in self.counterfactual_agents}
        for of_agent in counterfactual.values():
            if not all(of_agent):
                raise NoVerdict("unscored", "a completion has no sibling with a reward that could replace it")
        coalitions = coalition_texts(node) if self.coalition_agents else []
        joint = [texts for of_agent in counterfactual.values() for of_action in of_agent for texts in of_action]
        joint += [texts for of_action in coalitions for texts in of_action.values()]
        if greedy:
            joint.append(tuple(completion.text for completion in greedy))
        if not joint:
            return
        distinct = list(dict.fromkeys(joint))  # in joint mode cross many are equal
        attempts = [self.environment.attempt(run.task, list(texts), last) for texts in distinct]
        outcomes = await self._evaluate_attempts(run, attempts)
        for outcome in outcomes:
            if outcome.unscored:
                raise NoVerdict("unscored", f"a joint action of a baseline has no reward: {outcome.failure}")
        rewarded = {texts: self._rewarded((), outcome) for texts, outcome in zip(distinct, outcomes, strict=True)}
        node.recombined = rewarded
        for agent, of_agent in counterfactual.items():
            rewards = ([rewarded[texts].rewards[agent] for texts in of_action] for of_action in of_agent)
            node.counterfactuals[agent] = list(map(fmean, rewards))
        for agent in self.coalition_agents:
            node.counterfactuals[agent] = [
                action.rewards[agent]
                - shapley_value(agent, {c: rewarded[texts].rewards[agent] for c, texts in of_action.items()})
                for action, of_action in zip(node.joint_actions, coalitions, strict=True)
            ]
        if greedy:
            node.greedy = GreedySample(tuple(greedy), rewarded[joint[-1]].reward, rewarded[joint[-1]].rewards)

    async def _evaluate_attempts(self, run: _Run, attempts: Sequence[Attempt], probe: bool = False) -> list[Outcome]:
        """Return the outcomes, some of which may be unscored. Raises NoVerdict if an execution failed."""
        outcomes = await self.outcomes(attempts, probe)
        run.reward_calls.append(len(outcomes))
        for outcome in outcomes:
            if outcome.unscored:
                run.unscored.append(outcome)
            elif outcome.failure:
                raise NoVerdict("infra_error", outcome.failure)
        return outcomes

    async def rewards_of(self, task: Task, joint: Sequence[Sequence[str]]) -> list[float]:
        """Return the reward of each joint answer to the first prompts, NaN without a verdict."""
        last = self.config.rollout.num_turns == 1
        outcomes = await self.outcomes([self.environment.attempt(task, list(texts), last) for texts in joint])
        return [math.nan if outcome.failure else self._processed(outcome.reward) for outcome in outcomes]

    def score(self, task: Task, texts: Sequence[str], last: bool) -> JointAction | None:
        """Return a joint answer with its reward, in an environment without programs; None without a verdict."""
        attempt = self.environment.attempt(task, list(texts), last)
        outcome = checked_outcome(self.environment, "outcome", self.environment.outcome(attempt, None))
        return None if outcome.failure else self._rewarded((), outcome)

    async def outcomes(self, attempts: Sequence[Attempt], probe: bool = False) -> list[Outcome]:
        """Return each attempt's outcome, from one execution of its programs."""
        of_attempt = group_reports(attempts, await self._execute(collect_programs(attempts)))
        outcomes = [
            checked_outcome(self.environment, "outcome", self.environment.outcome(attempt, report))
            for attempt, report in zip(attempts, of_attempt, strict=True)
        ]
        if not probe and not self.environment.pays_probes:
            return outcomes
        return await self._probe(attempts, of_attempt, outcomes)

    async def _probe(
        self, attempts: Sequence[Attempt], reports: Sequence[Any], outcomes: Sequence[Outcome]
    ) -> list[Outcome]:
        """Return the outcomes after executing each attempt's probes."""
        probes = [self.environment.probes(a, report) for a, report in zip(attempts, reports, strict=True)]
        results = iter(await self._execute([program for of_attempt in probes for program in of_attempt]))
        probed = []
        for attempt, report, outcome, of_attempt in zip(attempts, reports, outcomes, probes, strict=True):
            own = [next(results) for _ in of_attempt]
            after = self.environment.probed_outcome(attempt, report, outcome, own)
            probed.append(checked_outcome(self.environment, "probed", after))
        return probed

    async def _execute(self, programs: list[Any]) -> list[Any]:
        reports = await self.environment.execute(programs, self.executor)
        check_reports(qualified_method_name(self.environment, "execute"), reports, len(programs))
        return reports

    def _rewarded(self, indices: tuple[int, ...], outcome: Outcome) -> JointAction:
        own = outcome.rewards or (outcome.reward,) * self.config.num_agents
        return JointAction(indices, outcome, self._processed(outcome.reward), tuple(map(self._processed, own)))

    def _processed(self, reward: float) -> float:
        processor = self.config.reward_processor
        return reward * processor.scale_factor + processor.shift if processor.enabled else reward

    def sampling(self, evaluation: bool, agent: int, key: tuple[str | int, ...], num_generations: int) -> SamplingSpec:
        """Return the sampling parameters of a group, whose random stream is called `key`."""
        settings = self.config.agents[agent]
        temperature = self.config.evaluation.eval_temperature if evaluation else None
        return SamplingSpec(
            num_generations=num_generations,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature if temperature is None else temperature,
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
    own = environment.make_runner(config, transition, generators, executor)
    return EpisodeRunner(config, environment, transition, generators, executor) if own is None else own
