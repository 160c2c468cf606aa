"""Playing turns of prompts and answers.

At a node every agent samples a group of completions (`marl_ray.rollout.turn`), and the joint mode forms joint actions,
which a scorer rewards. While turns remain, the handoff selects joint actions to expand, and the transition writes their
next prompts. No branch of a tree waits for its siblings, so engines batch across tasks, agents and turns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from marl_ray.config import Config
from marl_ray.core.chat import Prompt, with_system_prompt
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import Completion, Episode, Generation, Node, SamplingSpec, Stop, Task
from marl_ray.core.random_streams import random_stream, stream_seed
from marl_ray.environments import abilities
from marl_ray.environments.base import Attempt, BaseEnvironment, Environment, Executor
from marl_ray.environments.plugin_checks import check_order, check_prompts, qualified_method_name
from marl_ray.environments.program_environment import ProgramEnvironment
from marl_ray.external.transition import Transition
from marl_ray.rollout import HANDOFFS, JOINT_MODES
from marl_ray.rollout.player import CompletionGenerator, Player, sampling_of
from marl_ray.rollout.scorer import RewardTally, Scorer
from marl_ray.rollout.turn import TurnResult, check_handoff, sample_turn
from marl_ray.rollout.unscored import NoVerdict


@dataclass(frozen=True, slots=True)
class _Run:
    """A running episode. `key` names its random streams."""

    task: Task
    first_prompts: list[Prompt]
    key: tuple[str | int, ...]
    group_sizes: Sequence[int]
    """G of each turn."""
    evaluation: bool
    handoff: str
    on_node: Callable[[Node], None]
    """Called with each node as soon as it has its rewards."""
    priority: int
    stops: list[Stop] = field(default_factory=list)
    control_tokens: list[int] = field(default_factory=list)
    """The number of each generation."""
    rewards: RewardTally = field(default_factory=RewardTally)


@dataclass(frozen=True, slots=True)
class _Input:
    """The agents' prompts of a turn, and the token ids of the conversations that they continue; empty without one."""

    prompts: list[Prompt]
    histories: list[tuple[int, ...]]


class TurnPlayer(Player):
    """Plays episodes with the configured turns, joint mode and handoff. By default it makes the transition itself."""

    def __init__(
        self,
        config: Config,
        environment: Environment[Any],
        generators: Sequence[CompletionGenerator],
        executor: Executor,
        transition: Transition | None = None,
    ) -> None:
        super().__init__(config)
        self.environment = environment
        self.transition = transition or Transition(config.external, environment)
        self.generators = generators
        self.scorer = Scorer(config, environment, executor)
        self.joint_actions = JOINT_MODES.get(config.training.joint_mode)
        training = config.training
        self.handoffs = {
            training.handoff: HANDOFFS.get(training.handoff),
            training.eval_handoff: HANDOFFS.get(training.eval_handoff),
        }

    async def run_episode(
        self,
        task: Task,
        num_generations: int | Sequence[int],
        *key: str | int,
        evaluation: bool = False,
        on_node: Callable[[Node], None] = lambda node: None,
        priority: int = 0,
    ) -> Episode:
        run = self._start(task, num_generations, key, evaluation, on_node, priority)
        root = await self._run_node(run, _first_input(run), ())
        stops = sorted(run.stops, key=lambda stop: stop.path)  # branches end in any order
        roles = tuple(self.environment.roles(task))
        return Episode(task, root, stops, sum(run.control_tokens), run.rewards.unscored, run.rewards.calls, roles)

    async def sample_first_turn(
        self, task: Task, num_generations: int, *key: str | int, evaluation: bool = False
    ) -> TurnResult | None:
        """Return the completions of the first turn without scoring them, or None if a prompt is too long. `key` names
        their random streams."""
        run = self._start(task, num_generations, key, evaluation)
        return await self._sample(run, _first_input(run), 0, (*run.key, 0))

    def _start(
        self,
        task: Task,
        num_generations: int | Sequence[int],
        key: tuple[str | int, ...],
        evaluation: bool,
        on_node: Callable[[Node], None] = lambda node: None,
        priority: int = 0,
    ) -> _Run:
        if isinstance(num_generations, int):
            group_sizes: Sequence[int] = (num_generations,) * self.config.training.num_turns
        else:
            group_sizes = num_generations
        first_prompts = self.environment.first_prompts(task)
        check_prompts(qualified_method_name(self.environment, "first_prompts"), first_prompts, self.config.num_agents)
        handoff = self.config.training.handoff
        if evaluation:
            handoff = self.config.training.eval_handoff
        return _Run(
            task,
            list(first_prompts),
            (*key, task.id),
            group_sizes,
            evaluation,
            handoff,
            on_node,
            priority,
        )

    async def _run_node(self, run: _Run, given: _Input, path: tuple[int, ...]) -> Node | None:
        """Return the node at `path` with all nodes below it. Return None if it failed, with a `Stop` in `run.stops`."""
        turn = len(path)
        last = turn + 1 == self.config.training.num_turns
        # With one expanded joint action per node the turn identifies the node; in a whole tree the path does.
        key: tuple[str | int, ...] = (*run.key, turn)
        if run.handoff == "all":
            key += path
        sampled, greedy = await gather(self._sample(run, given, turn, key), self._sample_greedy(run, given, key))
        if sampled is None:
            run.stops.append(Stop(path, "prompt_too_long"))
            return None
        try:
            scored = await self.scorer.score_turn(run.task, turn, sampled, greedy, run.rewards, run.evaluation)
        except NoVerdict as lost:
            run.stops.append(Stop(path, lost.reason, str(lost)))
            return None
        node = scored.node
        run.on_node(node)
        scores = [action.reward for action in node.joint_actions]
        if last:
            return node
        # An evaluation plays every turn, so that turns are measured on the same tasks.
        threshold = None if run.evaluation else self.config.training.early_termination_threshold
        if threshold is not None and sum(scores) / len(scores) > threshold:
            run.stops.append(Stop(path, "early_termination"))
            return node
        if run.handoff == "visible":
            for g, attempt in enumerate(scored.attempts):
                outcome = node.joint_actions[g].outcome
                scores[g] = float(abilities.solved(self.environment, attempt, outcome, "visible"))
        chosen = self.handoffs[run.handoff](scores, random_stream(self.config.seed, *key))
        check_handoff(run.handoff, chosen, len(scores))
        if self.config.external.stop != "never":
            chosen = self._end_solved(run, node, scored.attempts, chosen, path)
        await gather(*(self._expand(run, node, g, scored.attempts[g], path) for g in chosen))
        return node

    def _end_solved(
        self, run: _Run, node: Node, attempts: Sequence[Attempt], chosen: Sequence[int], path: tuple[int, ...]
    ) -> list[int]:
        """End the branches of chosen joint actions that solve the task, and return the others."""
        turns_left = self.config.training.num_turns - node.turn - 1
        scope = self.config.external.stop
        going_on: list[int] = []
        for g in chosen:
            if abilities.solved(self.environment, attempts[g], node.joint_actions[g].outcome, scope):
                node.stopped[g] = turns_left
                run.stops.append(Stop((*path, g), "solved"))
            else:
                going_on.append(g)
        return going_on

    async def _sample(self, run: _Run, given: _Input, turn: int, key: tuple[str | int, ...]) -> TurnResult | None:
        """Return the completions of this turn, or None if a prompt is too long."""
        environment = self.environment
        task = run.task
        order = abilities.order(environment, task)
        check_order(qualified_method_name(environment, "order"), order, self.config.num_agents)

        def generate(agent: int, prompt: Prompt, branch: int) -> Awaitable[Generation]:
            sampling = sampling_of(self.config, agent, run.evaluation, key, run.group_sizes[turn])
            if branch:  # a continuation for the reward of one earlier completion
                sampling = replace(sampling, num_generations=1, seed=stream_seed(sampling.seed, "line", branch))
            return self._generate(agent, prompt, sampling, run, given.histories[agent])

        def prompt_after(agent: int, prompt: Prompt, earlier: Mapping[int, str]) -> Prompt:
            later = abilities.prompt_after(environment, task, agent, prompt, earlier)
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
        if run.evaluation or not self.scorer.baselines.greedy:
            return []
        requests: list[Awaitable[Generation]] = []
        for agent, prompt in enumerate(given.prompts):
            sampling = sampling_of(self.config, agent, run.evaluation, key, 1)
            # The most probable token does not depend on a truncation; without one, log-probabilities are the model's.
            sampling = replace(sampling, temperature=0.0, top_p=1.0, top_k=None)
            requests.append(self._generate(agent, prompt, sampling, run, given.histories[agent]))
        completions: list[Completion] = []
        for generation in await gather(*requests):
            completions += generation.completions
        return completions


def _first_input(run: _Run) -> _Input:
    """Return the first prompts, which continue no conversation."""
    return _Input(run.first_prompts, [()] * len(run.first_prompts))


def make_player(
    config: Config,
    environment: BaseEnvironment,
    generators: Sequence[CompletionGenerator],
    executor: Executor,
    transition: Transition | None = None,
) -> Player:
    """Return the player of an environment's episodes: of turns, or of programs. `transition` as of `TurnPlayer`."""
    if isinstance(environment, ProgramEnvironment):
        player: Player = environment.player(config, generators, executor)
        return player
    assert isinstance(environment, Environment)
    return TurnPlayer(config, environment, generators, executor, transition)
