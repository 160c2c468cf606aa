"""An environment of the package verifiers (0.4): two agents name a number each without talking, and earn a reward if
the numbers are near each other. Its harness is one chat request, so that an episode starts no program."""

import asyncio
import re
from collections.abc import Iterable

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.runtimes import ProgramResult

__all__ = ["Agreeing", "AgreeingEnv", "OneRequest"]


class OneRequestConfig(vf.HarnessConfig):
    pass


class OneRequest(vf.Harness[OneRequestConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        _, prompt = self.resolve_text_prompt(data)
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=[{"role": "user", "content": prompt}])
        return ProgramResult(0, "", "")


class Naming(vf.Task):
    pass


class AgreeingConfig(vf.TasksetConfig):
    pass


class Agreeing(vf.Taskset[Naming, AgreeingConfig]):
    def load(self) -> Iterable[Naming]:
        for limit in (9, 99):
            yield Naming(vf.TaskData(prompt=f"Name a number from 0 to {limit}."), self.config.task)


class AgreeingEnvConfig(vf.EnvConfig):
    left: vf.AgentConfig = vf.AgentConfig()
    right: vf.AgentConfig = vf.AgentConfig()


def number_in(trace: vf.Trace) -> int | None:
    found = re.search(r"\d{1,2}", trace.last_reply or "")
    return int(found[0]) if found else None


class AgreeingEnv(vf.Env[AgreeingEnvConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await asyncio.gather(agents.left.run(task), agents.right.run(task))

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        numbers = [number_in(trace) for trace in episode.traces]
        for trace, own in zip(episode.traces, numbers, strict=True):
            agreed = None not in numbers and max(numbers) - min(numbers) <= 3
            trace.record_reward("number", 0.5 * (own is not None))
            trace.record_reward("agreement", 0.5 * agreed)
