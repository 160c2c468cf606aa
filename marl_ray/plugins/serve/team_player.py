"""Answers of the team and of single agents, from the generators and the sandbox of an evaluation.

The team plays a request as an evaluation plays a task, with the same prompts, sampling and feedback. A request without
tests has no verdict to give feedback about, so only its first turn is played and no program runs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.config import Config
from marl_ray.core.chat import Prompt, with_system_prompt
from marl_ray.core.episode import AgentCall, Completion, Generation, Node, SamplingSpec, Task
from marl_ray.core.errors import UserError
from marl_ray.core.random_streams import stream_seed
from marl_ray.environments.base import BaseEnvironment, Environment, Executor
from marl_ray.environments.joint_program import joint_program
from marl_ray.external.transition import transition_of
from marl_ray.http.reply_format import Usage
from marl_ray.http.request_formats import ApiError, SamplingRequest
from marl_ray.rollout.player import sampling_of
from marl_ray.rollout.turn_player import TurnPlayer

OnEvent = Callable[[dict[str, Any]], None]
"""Receives the events of an answer: parts of an agent's text, and the verdict of a turn."""


@dataclass(slots=True)
class Answer:
    """An answer: its text, the reason of its end (`stop` or `length`), its tokens and, for the team, its turns."""

    text: str
    finish_reason: str
    usage: Usage
    turns: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class _AgentStream:
    """The generators of one agent for one request (a `CompletionGenerator`); called once per turn."""

    agent: int
    generators: GeneratorGroup
    request: SamplingRequest
    seed: int
    usage: Usage
    on_event: OnEvent | None
    turn: int = 0

    async def generate(
        self, prompt: Prompt, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation:
        self.turn += 1
        sampling = requested_sampling(sampling, self.request, stream_seed(self.seed, self.agent, self.turn))
        on_text = None
        if self.on_event is not None:
            event = {"event": "delta", "turn": self.turn, "agent": f"agent_{self.agent}"}
            on_text = partial(_report, self.on_event, event)
        generation = await self.generators.stream(prompt, sampling, on_text, history=history)
        self.usage.add(generation)
        return generation


def _report(on_event: OnEvent, event: dict[str, Any], text: str) -> None:
    on_event({**event, "text": text})


def requested_sampling(sampling: SamplingSpec, request: SamplingRequest, seed: int) -> SamplingSpec:
    """Return the sampling with the settings of a request in place of the config's, and the stop texts of both."""
    tokens = request.max_completion_tokens or request.max_tokens or sampling.max_new_tokens
    temperature = request.temperature
    if temperature is None:  # 0 is a temperature
        temperature = sampling.temperature
    return replace(
        sampling,
        num_generations=1,
        max_new_tokens=tokens,
        min_new_tokens=min(sampling.min_new_tokens, tokens),
        temperature=temperature,
        top_p=request.top_p or sampling.top_p,
        seed=seed,
        stop=(*sampling.stop, *request.stops),
    )


class TeamPlayer:
    """The team of a config. `generators` has one entry per agent, shared by agents of one policy."""

    def __init__(
        self, config: Config, environment: BaseEnvironment, generators: Sequence[GeneratorGroup], sandbox: Executor
    ) -> None:
        self.config = config
        self.environment = environment
        self.sandbox = sandbox
        self.generators = generators
        self._transition = transition_of(config.external, environment)

    async def ask_team(self, task: Task, request: SamplingRequest, on_event: OnEvent | None = None) -> Answer:
        """Return the team's answer: the joint program of the last turn. Raises ApiError."""
        environment = self._check(task, request)
        usage = Usage()  # of all agents and turns
        seed = secrets.randbits(62) if request.seed is None else request.seed
        agents: list[_AgentStream] = []
        for agent, group in enumerate(self.generators):
            agents.append(_AgentStream(agent, group, request, seed, usage, on_event))
        player = TurnPlayer(self.config, environment, agents, self.sandbox, self._transition)
        turns: list[dict[str, Any]] = []
        if task.fields["tests"]:  # without tests there is no verdict, and so no feedback for a later turn
            calls = await self._play(player, task, turns, on_event)
        else:
            sampled = await player.sample_first_turn(task, 1, "eval", evaluation=True)
            if sampled is None:
                raise self._too_long()
            calls = [calls_of_agent[0] for calls_of_agent in sampled.calls]
            turns.append({"turn": 1, "agents": _parts(calls)})
        completions = [call.completion for call in calls]
        texts = [completion.text for completion in completions]
        text = joint_program(environment, task, texts)
        left_out = _left_out(environment, task, texts)
        turns[-1]["left_out"] = left_out
        if on_event is not None:
            on_event({"event": "answer", "left_out": left_out})
        return Answer(text, _finish_reason(completions), usage, turns)

    async def _play(
        self, player: TurnPlayer, task: Task, turns: list[dict[str, Any]], on_event: OnEvent | None
    ) -> list[AgentCall]:
        """Play all turns, add their records to `turns`, and return the calls of the last turn. Raises ApiError."""

        def on_node(node: Node) -> None:
            turns.append(turn_record(node))
            if on_event is not None:
                verdict = {"event": "verdict", **turns[-1]}
                del verdict["agents"]  # the client has read the parts of the agents
                on_event(verdict)

        episode = await player.run_episode(task, 1, "eval", evaluation=True, on_node=on_node)
        nodes = [node for _, node in episode.nodes()]
        if not nodes:
            if episode.stopped_by("prompt_too_long"):
                raise self._too_long()
            raise ApiError(503, "the sandbox gave no verdict: try again", "sandbox_unavailable")
        return [calls[0] for calls in nodes[-1].calls]

    async def ask_agent(
        self,
        agent: int,
        prompt: Prompt,
        request: SamplingRequest,
        choice: int,
        on_event: OnEvent | None = None,
    ) -> Answer:
        """Return one agent's answer to a text, which is not put into the chat template, or to messages, after the
        agent's system prompt if they have no system message. Raises ApiError."""
        if request.seed is None:
            seed = secrets.randbits(62)
        else:
            seed = stream_seed(request.seed, agent, choice)
        sampling = requested_sampling(sampling_of(self.config, agent, True, (), 1), request, seed)
        if not isinstance(prompt, str) and not any(message["role"] == "system" for message in prompt):
            prompt = with_system_prompt(prompt, self.config.agents[agent].system_prompt)
        on_text = None
        if on_event is not None:
            on_text = partial(_report, on_event, {"event": "text"})
        generation = await self.generators[agent].stream(prompt, sampling, on_text, raw=isinstance(prompt, str))
        if not generation.completions:
            raise self._too_long()
        usage = Usage()
        usage.add(generation)
        (completion,) = generation.completions
        return Answer(completion.text, _finish_reason([completion]), usage)

    def _check(self, task: Task, request: SamplingRequest) -> Environment[Any]:
        """Return the environment. Raises ApiError if it cannot play the task."""
        if request.n not in (None, 1) or request.stops:
            name = "stop" if request.stops else "n"
            raise ApiError(400, f"{name} is not supported for the model team", "unsupported_parameter", name)
        if not isinstance(self.environment, Environment):
            message = f"programs play the environment {self.config.environment}: ask a single agent"
            raise ApiError(400, message, "invalid_value", "model")
        try:
            self.environment.check_task(task)
            self.environment.roles(task)
            self.environment.first_prompts(task)
            # Fields that only the evaluation reads: an attempt raises on no text of the answers.
            self.environment.attempt(task, [""] * self.environment.num_agents, True)
        except UserError as error:
            raise ApiError(400, str(error), "invalid_value", "marl_ray.fields") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            name = f"{type(error).__name__}: {error}"[:200]
            message = f"the environment {self.config.environment} needs further fields of the task ({name})"
            raise ApiError(400, message, "invalid_value", "marl_ray.fields") from None
        return self.environment

    def _too_long(self) -> ApiError:
        length = self.config.model.max_length
        message = f"the prompt and max_tokens exceed the context of {length} tokens"
        return ApiError(400, message, "context_length_exceeded")


def _left_out(environment: Environment[Any], task: Task, texts: Sequence[str]) -> list[str]:
    """Return the agents without whose answers the team's answer is the same."""
    text = joint_program(environment, task, texts)
    agents = []
    for agent in range(len(texts)):
        others = list(texts)
        others[agent] = ""
        if joint_program(environment, task, others) == text:
            agents.append(f"agent_{agent}")
    return agents


def turn_record(node: Node) -> dict[str, Any]:
    """Return a turn as plain data: each agent's part, the reward and the evidence."""
    action = node.joint_actions[0]
    evidence = {}
    if action.outcome.evidence is not None:
        evidence = action.outcome.evidence.data()
    return {
        "turn": node.turn + 1,
        "agents": _parts(node.answers(action)),
        "reward": action.reward,
        "levels": dict(action.outcome.levels),
        "metrics": dict(action.outcome.metrics),
        **evidence,
    }


def _parts(calls: Sequence[AgentCall]) -> list[dict[str, Any]]:
    """Return each agent's part of a turn as plain data."""
    parts: list[dict[str, Any]] = []
    for call in calls:
        completion = call.completion
        part = {
            "agent": f"agent_{call.agent}",
            "prompt": call.prompt,
            "text": completion.text,
            "finish_reason": _finish_reason([completion]),
            "completion_tokens": len(completion.token_ids),
        }
        parts.append(part)
    return parts


def _finish_reason(completions: Sequence[Completion]) -> str:
    reasons = [completion.finish_reason for completion in completions]
    return "length" if "length" in reasons else "stop"
