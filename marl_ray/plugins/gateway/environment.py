"""The environment `gateway`: programs play the episodes. docs/how-to/train_a_program.md describes its use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from marl_ray.config.keys import key_of
from marl_ray.core.chat import Prompt
from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize
from marl_ray.credit.requirements import estimator_requirements
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.abilities import HoldsResources
from marl_ray.environments.base import Environment, Executor
from marl_ray.environments.program_environment import ProgramEnvironment
from marl_ray.plugins.gateway.options import GatewayConfig
from marl_ray.plugins.gateway.program_episode import task_as_data
from marl_ray.plugins.gateway.programs import FUNCTIONS, CommandProgram, EpisodeProgram, FunctionProgram, JudgedTurn
from marl_ray.plugins.gateway.prompt_renderer import PromptRenderer
from marl_ray.plugins.gateway.service_program import ServiceProgram
from marl_ray.rollout.baselines import Baselines

if TYPE_CHECKING:
    from marl_ray.config import AgentConfig, Config, ModelConfig
    from marl_ray.plugins.gateway.server import GatewayServer

logger = logging.getLogger(__name__)

NAME = "gateway"
JUDGED_FIELDS = ("entry_point",)
"""Fields of a task that a program may read whose answers another environment judges."""
MAX_PROBE_CHARS = 400
"""Characters of a task that stand for the unknown prompts of a program when a run checks its models."""


class GatewayEnvironment(ProgramEnvironment, HoldsResources):
    """Episodes of programs that call the agents over HTTP, or in this process. The judge's prompts, or the beginning
    of the task, stand for the prompts of the program in checks of the models."""

    def __init__(
        self, num_agents: int, settings: GatewayConfig, program: EpisodeProgram, judge: Environment[Any] | None
    ) -> None:
        super().__init__(num_agents)
        self.settings = settings
        self.program = program
        self.judge = judge
        self._named_fields = settings.task_fields or ()
        self._fields = settings.task_fields
        """Fields of a task that a program reads, None for all."""
        if self._fields is None and judge is not None:
            self._fields = JUDGED_FIELDS  # the others may have the tests of the judge
        self.names = list(settings.roles) or [f"agent_{number}" for number in range(num_agents)]
        self.limit = asyncio.Semaphore(settings.concurrency)
        """Places of running episodes."""
        self.failures = 0
        """Number of failed episodes so far."""
        self.diverged = 0
        """Number of replays that were refused so far, because the program made other requests."""
        self.kept_replays = 0
        """Number of replays so far that were not refused."""
        self.warned_of_no_call = False
        self._renderers: list[PromptRenderer] = []
        self._server: GatewayServer | None = None

    @classmethod
    def from_config(cls, config: Config) -> Self:
        check_settings(config)
        settings = config.section(GatewayConfig)
        if settings.credit == "calls":
            siblings = config.training.group_sizes[0]
            logger.info(
                f"gateway.credit calls: {settings.runs_per_task(siblings)} runs of the program per task, one and "
                f"{siblings - 1} for each of {settings.replayed_calls} calls that are sampled anew, not {siblings}"
            )
        removed = Baselines(config.agents, config.training.counterfactual).counterfactual_agents
        if removed:
            siblings = config.training.group_sizes[0]
            runs = pluralize(siblings * (1 + len(removed)), "run")
            absent = pluralize(len(removed), "agent")
            logger.info(f"{runs} of the program per task: {siblings}, and each once more without {absent}")
        judge = None
        if settings.judge is not None:
            judge = ENVIRONMENTS.get(settings.judge).from_config(config)
        return cls(config.num_agents, settings, make_program(settings, judge), judge)

    def check_task(self, task: Task) -> None:
        if self.judge is not None:
            self.judge.check_task(task)
        for name in self._named_fields:
            if name not in task_as_data(task):
                raise UserError(f"gateway.task_fields: task {task.id} has no field {name}")

    def shown(self, task: Task) -> dict[str, Any]:
        """Return the task as a program reads it."""
        data = task_as_data(task)
        if self._fields is None:
            return data
        shown = ("id", "prompt", *self._fields)
        return {name: value for name, value in data.items() if name in shown}

    def roles(self, task: Task) -> list[str]:
        return self.names

    def first_prompts(self, task: Task) -> Sequence[Prompt]:
        if self.judge is not None:
            return self.judge.first_prompts(task)
        return [task.prompt[:MAX_PROBE_CHARS] or task.id] * self.num_agents

    def player(self, config: Config, generators: Sequence[Any], executor: Executor) -> Any:
        from marl_ray.plugins.gateway.program_player import ProgramPlayer

        return ProgramPlayer(config, self, generators, executor)

    async def server(self) -> GatewayServer:
        """Return the running server of this environment."""
        from marl_ray.plugins.gateway.server import GatewayServer

        if self._server is None:
            service = None
            if isinstance(self.program, ServiceProgram):
                service = self.program
            self._server = GatewayServer(self.settings, service)
        await self._server.start()
        return self._server

    def renderers(self, agents: Sequence[AgentConfig], model: ModelConfig) -> list[PromptRenderer]:
        """Return the rendering of each agent's prompts. The tokenizers are loaded once."""
        if not self._renderers:
            self._renderers = [PromptRenderer(agent, model) for agent in agents]
        return self._renderers

    async def close(self) -> None:
        # A service that still asks for tasks would keep the server waiting.
        await self.program.close()
        if self._server is not None:
            await self._server.close()
            self._server = None


def make_program(config: GatewayConfig, judge: Environment[Any] | None) -> EpisodeProgram:
    """Return the program of a config, or else one turn of the judge. Raises UserError."""
    if config.command is not None and config.function is not None:
        raise UserError("environment gateway needs one program: set gateway.command or gateway.function, not both")
    if config.service:
        return ServiceProgram(config)
    if config.function is not None:
        return FunctionProgram(FUNCTIONS.get(config.function), config.function)
    if config.command is not None:
        return CommandProgram(config)
    if judge is None:
        raise UserError("environment gateway needs one program: set gateway.command, gateway.function or gateway.judge")
    logger.info(f"program: a turn of {config.judge}")
    return JudgedTurn(judge)


def check_settings(config: Config) -> None:
    """Raise UserError for settings that have no meaning for episodes of programs."""
    section = config.algorithm
    gateway = config.section(GatewayConfig)
    if config.training.num_turns != 1:
        raise UserError(f"{section}.num_turns is {config.training.num_turns}, but the program decides: set it to 1")
    if config.training.joint_mode != "aligned":
        mode = config.training.joint_mode
        raise UserError(f"{section}.joint_mode is {mode}, but a program is one joint action: set it to aligned")
    check_credit(config, NAME)
    if config.training.overlong == "penalty":
        raise UserError(f"{section}.overlong penalty is for one answer per episode: set it to mask or none")
    if gateway.roles and len(set(gateway.roles)) != config.num_agents:
        raise UserError(f"gateway.roles should have {config.num_agents} different names, one per agent")
    if (gateway.reward == "judge") != (gateway.judge is not None):
        raise UserError("gateway.reward judge and gateway.judge belong together: set both or neither")
    if gateway.judge == NAME:
        raise UserError("gateway.judge should be another environment, such as code_generation")
    if gateway.function is not None and gateway.reward in ("file", "post"):
        raise UserError(f"gateway.reward {gateway.reward} is for gateway.command: a function returns its reward")
    if gateway.sandbox != "none" and gateway.command is None:
        where = "the program runs in the driver"
        if gateway.service:
            where = "you start the service yourself"
        raise UserError(f"gateway.sandbox {gateway.sandbox} is for gateway.command: {where}")
    if gateway.service and (gateway.function is not None or gateway.reward not in ("post", "judge")):
        raise UserError("a service posts its results: set gateway.reward to post or judge, and no gateway.function")


def check_credit(config: Config, name: str) -> None:
    """Raise UserError for a critic, a latency term or an estimator that needs more than the rewards of the episodes of
    a task. The environment `name` has no more."""
    if config.training.critic != "none":
        raise UserError(
            f"{config.algorithm}.critic {config.training.critic} needs one state per episode: set it to none"
        )
    if config.training.latency_coef:
        raise UserError(f"{config.algorithm}.latency_coef needs one answer per agent and turn: set it to 0")
    settings = config.section(GatewayConfig)
    for number, agent in enumerate(config.agents):
        needs = estimator_requirements(agent.estimator)
        key = key_of(config, number, "estimator")
        unmet = set(needs.inputs)
        if config.training.counterfactual == "empty" and settings.credit == "runs":
            unmet.discard("counterfactual_rewards")  # a program can be run again without an agent
        if unmet or needs.whole_batch:
            raise UserError(
                f"{key} {agent.estimator} needs more than the rewards of siblings, which environment {name} has: use "
                "magrpo, marloo, maremax or mareinforce (difference needs counterfactual empty and gateway.credit runs)"
            )
        if settings.credit == "calls" and agent.reference_kl_coef and not config.training.kl_in_loss:
            raise UserError(
                f"gateway.credit calls needs returns that the learner does not change, but {config.algorithm}."
                f"reference_kl is {config.training.reference_kl}: set it to k3_in_loss or k2_in_loss"
            )
