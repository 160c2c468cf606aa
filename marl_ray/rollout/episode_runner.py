"""Playing episodes: many coroutines share the agents' engines and the environment's executor.

At a node all agents are asked for their groups, at the same time unless the environment has an order (`turn`); the
joint mode makes joint actions of them; their programs are executed, equal ones once; outcomes become rewards and, where
a turn remains, the next prompts of the joint actions that the handoff expands. Engines batch across tasks, agents and
turns; no episode waits for another, and no branch of a tree for its siblings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from marl_ray.config import Config
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
)
from marl_ray.core.random_streams import random_stream, stream_seed
from marl_ray.credit import BEYOND_SIBLINGS
from marl_ray.credit.returns import completion_returns, median_index
from marl_ray.environments.base import Attempt, Environment, Executor, collect_programs, group_reports
from marl_ray.environments.plugin_checks import (
    check_order,
    check_outcome,
    check_reports,
    check_texts,
    check_turn_metrics,
    qualified_method_name,
)
from marl_ray.external.transition import Transition
from marl_ray.rollout.handoff import HANDOFFS
from marl_ray.rollout.joint_actions import JOINT_MODES
from marl_ray.rollout.turn import TurnResult, sample_turn


class CompletionGenerator(Protocol):
    """One agent's generators; of prompts that wait those with the lowest `priority` come first."""

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation: ...


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
    learned: bool
    """Whether somebody learns from it, whose estimator may ask for more than the joint actions."""
    on_node: Callable[[Node], None]
    """Is told of each node as soon as it has its rewards."""
    priority: int
    stops: list[Stop] = field(default_factory=list)


class RolloutListener(Protocol):
    """Hears of a batch while it is played. Draws count from 0."""

    def add_node(self, draw: int, node: Node) -> None: ...

    def add_episode(self, draw: int, episode: Episode) -> None: ...


class EpisodeRunner:
    """Plays episodes with the config's turns, joint mode, handoff and rewards."""

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
        self.joint_actions = JOINT_MODES[config.rollout.joint_mode]
        self.expanded = HANDOFFS[config.rollout.handoff]
        looked_at = [BEYOND_SIBLINGS.get(agent.estimator) for agent in config.agents]
        self.greedy = "greedy" in looked_at
        """Whether nodes have a greedy joint sample."""
        self.replaced = [agent for agent, what in enumerate(looked_at) if what == "counterfactual"]
        """Agents that are told what the team had earned without them."""

    async def run_batch(self, tasks: Sequence[Task], step: int, audience: RolloutListener) -> list[Episode]:
        """The episodes of training step number `step` (from 0). Whatever they wait for has a deadline of its own."""

        async def play(draw: int, task: Task) -> Episode:
            episode = await self.run_episode(
                task,
                self.config.rollout.num_generations,
                "train",
                step,
                on_node=lambda node: audience.add_node(draw, node),
                priority=step,
            )
            audience.add_episode(draw, episode)
            return episode

        return await gather(*(play(draw, task) for draw, task in enumerate(tasks)))

    async def evaluate(self, tasks: Sequence[Task]) -> list[Episode]:
        """The episodes of a training's evaluation."""
        size = self.config.evaluation.eval_num_generations
        return await gather(*(self.evaluate_task(task, size) for task in tasks))

    async def evaluate_task(self, task: Task, num_generations: int, sample: int = 0) -> Episode:
        """An episode of an evaluation, a training's or `marl-ray eval`'s, sampled at `eval_temperature` (0: greedy): it
        does not end early for a good reward, so that every turn is measured on all tasks.

        `sample`, from 0, names one of several independent ones; a training plays the first.
        """
        key = ("eval", sample) if sample else ("eval",)
        return await self.run_episode(task, num_generations, *key, evaluation=True)

    async def run_episode(
        self,
        task: Task,
        num_generations: int,
        *key: str | int,
        evaluation: bool = False,
        on_node: Callable[[Node], None] = lambda node: None,
        priority: int = 0,
    ) -> Episode:
        """One episode. `key` names its random streams."""
        first_prompts = self.environment.first_prompts(task)
        check_texts(qualified_method_name(self.environment, "first_prompts"), first_prompts, self.config.num_agents)
        play = _Play(
            task=task,
            first_prompts=first_prompts,
            key=(*key, task.id),
            num_generations=num_generations,
            threshold=None if evaluation else self.config.rollout.early_termination_threshold,
            temperature=self.config.evaluation.eval_temperature if evaluation else None,
            probe=self.config.output.probe_helpers in (("eval", "always") if evaluation else ("always",)),
            learned=not evaluation,
            on_node=on_node,
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
        said, greedy = await gather(self._ask(play, prompts, key), self._most_likely(play, prompts, key))
        if said is None:
            play.stops.append(Stop(path, "prompt_too_long"))
            return None
        attempts = [self.environment.attempt(play.task, responses_of(said.completions, i), last) for i in said.indices]
        try:
            outcomes = await self._verdicts(attempts, play.probe)
            actions = [self._rewarded(i, outcome) for i, outcome in zip(said.indices, outcomes, strict=True)]
            node = Node(
                turn, said.prompts, said.prompt_ids, said.completions, actions, other_prompts=said.other_prompts
            )
            if play.learned:
                await self._add_baselines(play.task, node, greedy, last)
        except _NoVerdict as lost:
            play.stops.append(Stop(path, "infra_error", str(lost)))
            return None
        play.on_node(node)
        rewards = [action.reward for action in actions]
        if last:
            return node
        if play.threshold is not None and sum(rewards) / len(rewards) > play.threshold:
            play.stops.append(Stop(path, "early_termination"))
            return node
        chosen = self.expanded(rewards, random_stream(self.config.seed, *key))
        await gather(*(self._expand(play, node, g, attempts[g], path) for g in chosen))
        return node

    async def _ask(self, play: _Play, prompts: list[str], key: tuple[str | int, ...]) -> TurnResult | None:
        """What the agents answer in this turn; None where a prompt is too long."""
        environment, task = self.environment, play.task
        order = environment.order(task)
        check_order(qualified_method_name(environment, "order"), order, self.config.num_agents)

        def ask(agent: int, prompt: str, line: int) -> Awaitable[Generation]:
            sampling = self._sampling(play, agent, key)
            if line:
                seed = stream_seed(sampling.seed, "line", line)
                sampling = replace(sampling, num_generations=1, seed=seed)
            return self.generators[agent].generate(prompt, sampling, play.priority)

        def prompt_after(agent: int, prompt: str, answers: Mapping[int, str]) -> str:
            given = environment.prompt_after(task, agent, prompt, answers)
            check_texts(qualified_method_name(environment, "prompt_after"), [given])
            return given

        return await sample_turn(order, prompts, ask, prompt_after, self.joint_actions)

    async def _expand(self, play: _Play, node: Node, index: int, attempt: Attempt, path: tuple[int, ...]) -> None:
        """Go on from one joint action of `node`."""
        outcome = node.joint_actions[index].outcome
        heard = await self.transition.next_prompts(play.task, play.first_prompts, attempt, outcome)
        node.transitions[index] = heard.metrics
        child = await self._play_node(play, heard.prompts, (*path, index))
        if child is not None:
            node.children[index] = child

    async def _most_likely(self, play: _Play, prompts: Sequence[str], key: tuple[str | int, ...]) -> list[Completion]:
        """Every agent's greedy answer; none where nobody asks for it, or a prompt is too long."""
        if not (self.greedy and play.learned):
            return []
        samplings = [
            replace(self._sampling(play, agent, key), num_generations=1, temperature=0.0, top_p=1.0, top_k=None)
            for agent in range(len(prompts))
        ]
        asked = zip(self.generators, prompts, samplings, strict=True)
        generations = await gather(*(g.generate(prompt, how, play.priority) for g, prompt, how in asked))
        return [completion for generation in generations for completion in generation.completions]

    async def _add_baselines(self, task: Task, node: Node, greedy: Sequence[Completion], last: bool) -> None:
        """What the agents' estimators look at beside the node's joint actions. Raises _NoVerdict."""
        replaced = {agent: self._replaced(node, agent) for agent in self.replaced}
        joint = [texts for of_agent in replaced.values() for texts in of_agent]
        if greedy:
            joint.append(tuple(completion.text for completion in greedy))
        if not joint:
            return
        distinct = list(dict.fromkeys(joint))  # in joint mode cross many are alike
        outcomes = await self._verdicts([self.environment.attempt(task, list(texts), last) for texts in distinct])
        earned = {texts: self._rewarded((), outcome) for texts, outcome in zip(distinct, outcomes, strict=True)}
        for agent, of_agent in replaced.items():
            node.counterfactuals[agent] = [earned[texts].rewards[agent] for texts in of_agent]
        if greedy:
            node.greedy = GreedySample(tuple(greedy), earned[joint[-1]].reward, earned[joint[-1]].rewards)

    def _replaced(self, node: Node, agent: int) -> list[tuple[str, ...]]:
        """Every joint action's texts with the stand-in for the agent's [J]."""
        stand_in = ""
        if self.config.credit.counterfactual == "median":
            returns = completion_returns(node, agent, [action.rewards[agent] for action in node.joint_actions])
            stand_in = node.completions[agent][median_index(returns)].text
        joint = (responses_of(node.completions, action.indices) for action in node.joint_actions)
        return [(*texts[:agent], stand_in, *texts[agent + 1 :]) for texts in joint]

    async def _verdicts(self, attempts: Sequence[Attempt], probe: bool = False) -> list[Outcome]:
        """The outcomes. Raises _NoVerdict where the machinery gave none of one."""
        outcomes = await self.outcomes(attempts, probe)
        failure = next((outcome.failure for outcome in outcomes if outcome.failure), "")
        if failure:
            raise _NoVerdict(failure)
        return outcomes

    async def outcomes(self, attempts: Sequence[Attempt], probe: bool = False) -> list[Outcome]:
        """Each attempt's outcome, from one execution of its program if it has one."""
        of_attempt = group_reports(attempts, await self._execute(collect_programs(attempts)))
        outcomes = [self.environment.outcome(a, report) for a, report in zip(attempts, of_attempt, strict=True)]
        for outcome in outcomes:
            check_outcome(qualified_method_name(self.environment, "outcome"), outcome, self.config.num_agents)
        return await self._probe(attempts, of_attempt, outcomes) if probe else outcomes

    async def _probe(
        self, attempts: Sequence[Attempt], reports: Sequence[Any], outcomes: Sequence[Outcome]
    ) -> list[Outcome]:
        """The outcomes with further metrics, from executing each attempt's probes."""
        probes = [self.environment.probes(a, report) for a, report in zip(attempts, reports, strict=True)]
        answers = iter(await self._execute([program for several in probes for program in several]))
        found = [
            self.environment.probed(a, report, [next(answers) for _ in several])
            for a, report, several in zip(attempts, reports, probes, strict=True)
        ]
        for more in found:
            check_turn_metrics(qualified_method_name(self.environment, "probed"), more)
        return [replace(o, metrics={**o.metrics, **more}) for o, more in zip(outcomes, found, strict=True)]

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


class _NoVerdict(Exception):
    """The machinery gave none; the text says why."""


def responses_of(groups: Sequence[Sequence[Completion]], indices: Sequence[int]) -> list[str]:
    """The texts of one joint action."""
    return [group[index].text for group, index in zip(groups, indices, strict=True)]
