"""An environment of marl_ray as one of the package verifiers (0.4): its tasks, its episodes and its rewards come from a
running `marl-ray environment`, whose address is in MARL_RAY_ENVIRONMENT.

The agents of a team are the roles agent_0, agent_1, and so on. With one model for all roles, the model plays each agent
in turn; a role may have a model of its own. Every answer is a trace, with the reward of its agent in its turn. The
module imports verifiers and nothing of marl_ray: put its folder on PYTHONPATH, and name it as a taskset.
"""

import json
import os
from collections.abc import Iterable
from typing import Any
from urllib.request import urlopen

import httpx
import verifiers.v1 as vf
from openai import AsyncOpenAI
from pydantic import create_model
from verifiers.v1.runtimes import ProgramResult
from verifiers.v1.utils.loaders import load_environment as load_configured
from verifiers.v1.utils.loaders import resolve_env_config

__all__ = ["OneRequest", "Team", "TeamTasks", "load_environment"]

SERVER = os.environ["MARL_RAY_ENVIRONMENT"]
TIMEOUT_S = 600.0


def offered() -> dict[str, Any]:
    """Return the ids of the server's tasks, and its number of agents."""
    with urlopen(SERVER + "/tasks", timeout=TIMEOUT_S) as reply:
        return json.load(reply)


ROLES = [f"agent_{number}" for number in range(offered()["agents"])]
own: dict[str, Any] = {"runtime": {"type": "subprocess"}}
"""The harness starts no program, so it needs no container."""
TeamConfig: Any = create_model(
    "TeamConfig", __base__=vf.EnvConfig, **{role: (vf.AgentConfig, vf.AgentConfig(**own)) for role in ROLES}
)


class OneRequestConfig(vf.HarnessConfig):
    pass


class OneRequest(vf.Harness[OneRequestConfig]):
    """One chat request per prompt."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    APPENDS_SYSTEM_PROMPT = True

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        _, prompt = self.resolve_prompt(data)
        messages = [{"role": "user", "content": prompt}]
        if not isinstance(prompt, str):
            messages = [{"role": one.role, "content": one.content} for one in prompt or ()]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return ProgramResult(0, "", "")


class TeamTask(vf.Task):
    pass


class TeamTasksConfig(vf.TasksetConfig):
    pass


class TeamTasks(vf.Taskset[TeamTask, TeamTasksConfig]):
    def load(self) -> Iterable[TeamTask]:
        for name in offered()["tasks"]:
            yield TeamTask(vf.TaskData(id=name, name=name), self.config.task)


class Team(vf.Env[TeamConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with httpx.AsyncClient(base_url=SERVER, timeout=TIMEOUT_S) as client:

            async def call(path: str, body: dict[str, Any]) -> dict[str, Any]:
                reply = await client.post(path, json=body)
                reply.raise_for_status()
                return reply.json()

            turn: list[vf.Trace] = []
            result = await call("/reset", {"task": task.data.id})
            while not result["done"]:
                seen = result["observation"]
                asked = TeamTask(vf.TaskData(id=task.data.id, prompt=seen["prompt"]), task.config)
                trace = await getattr(agents, ROLES[seen["agent"]]).run(asked)
                turn.append(trace)
                action = {"text": trace.last_reply}
                result = await call("/step", {"action": action, "episode_id": seen["episode_id"]})
                if result["reward"] is not None:  # the turn is complete
                    for one in turn:
                        number = ROLES.index(one.agent.name)
                        one.record_reward("reward", result["observation"]["rewards"][number])
                        one.record_metrics(result["observation"]["metrics"])
                    turn = []


def load_environment(**settings: Any) -> vf.Env:
    """Return the environment; `settings` are keys of its config, such as `agent_1={"model": "tester"}`."""
    for role in ROLES:
        settings[role] = own | settings.get(role, {})
    return load_configured(resolve_env_config({"taskset": {"id": __name__}} | settings))
