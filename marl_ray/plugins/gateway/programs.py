"""Programs that play episodes: a command in processes of its own, an async function, or one turn of the judge."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import shlex
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from marl_ray.core.chat import as_messages
from marl_ray.core.concurrency import gather
from marl_ray.core.errors import UserError
from marl_ray.core.text import json_or
from marl_ray.environments import abilities
from marl_ray.environments.base import Environment
from marl_ray.environments.plugin_checks import check_order, qualified_method_name
from marl_ray.http.request_formats import ApiError
from marl_ray.plugins.gateway.confinement import LAUNCHER, check_confinement, launcher_options
from marl_ray.plugins.gateway.options import GatewayConfig
from marl_ray.plugins.gateway.program_episode import ProgramEpisode
from marl_ray.plugins.gateway.program_result import ProgramFailed, parse_json
from marl_ray.registry import Registry

FUNCTIONS = Registry("gateway.function", {})
"""Async functions that play an episode."""
VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "NO_PROXY", "no_proxy")
"""Variables of the driver's environment that every command receives."""
KEPT_BYTES = 1 << 16
"""Bytes of the end of a command's output that are read."""
MAX_REWARD_BYTES = 1 << 20
CLOSE_S = 30.0
"""Seconds in which the launcher kills a command with its descendants."""
TASK_FILE, REWARD_FILE = "task.json", "reward.json"


class EpisodeProgram(ABC):
    """A program that plays episodes. `play` returns the value that `parse_result` reads, and raises ProgramFailed."""

    @abstractmethod
    async def play(self, episode: ProgramEpisode) -> Any: ...

    async def close(self) -> None:  # noqa: B027 (most programs have nothing to end)
        """End what outlives an episode; by default nothing does."""


class FunctionProgram(EpisodeProgram):
    """An async function of an episode (`ProgramEpisode`), in this process. Raises UserError for a plain function."""

    def __init__(self, function: Callable[[ProgramEpisode], Any], name: str) -> None:
        if not inspect.iscoroutinefunction(function):
            raise UserError(f"gateway.function {name} should be an async function of one episode")
        self._function = function

    async def play(self, episode: ProgramEpisode) -> Any:
        try:
            return await self._function(episode)
        except Exception as error:  # of a function that this package does not know
            raise ProgramFailed(f"{type(error).__name__}: {str(error)[:200]}") from error


class JudgedTurn(EpisodeProgram):
    """One turn of an environment, whose agents answer in its order. The environment is the judge of the answers.

    The agents read the prompts that they would read without the gateway, and the turn can be run again with recorded
    answers.
    """

    def __init__(self, judge: Environment[Any]) -> None:
        self._judge = judge

    async def play(self, episode: ProgramEpisode) -> Any:
        task = episode.task
        prompts = self._judge.first_prompts(task)
        answers: dict[int, str] = {}
        order = abilities.order(self._judge, task)
        check_order(qualified_method_name(self._judge, "order"), order, self._judge.num_agents)
        for round_agents in order:
            calls = []
            for agent in round_agents:
                prompt = prompts[agent]
                if answers:  # the first round reads nothing
                    prompt = abilities.prompt_after(self._judge, task, agent, prompt, answers)
                calls.append(episode.chat(agent, as_messages(prompt)))
            try:
                choices_by_agent = await gather(*calls)
            except ApiError as error:  # a prompt that is too long for the model
                raise ProgramFailed(str(error)) from error
            for agent, choices in zip(round_agents, choices_by_agent, strict=True):
                answers[agent] = choices[0].text
        return {}  # the judge reads each agent's last completion


class CommandProgram(EpisodeProgram):
    """A command in a session of its own, without the environment of this process.

    The command receives `OPENAI_BASE_URL`, `OPENAI_API_KEY` (the token of the episode) and the same for Anthropic's
    client. All its descendants are killed at the end of the episode, and when this process dies.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        try:
            self._words = shlex.split(config.command or "")
        except ValueError as error:
            raise UserError(f"gateway.command cannot be split into words ({error}): check its quotes") from None
        if not self._words:
            raise UserError("gateway.command is empty: give the command of an episode")
        if config.sandbox == "namespaces":
            check_confinement(config, self._words)

    async def play(self, episode: ProgramEpisode) -> Any:
        with tempfile.TemporaryDirectory(prefix="marl_ray_episode_") as folder:
            task_file = Path(folder, TASK_FILE)
            reward_file = Path(folder, REWARD_FILE)
            task_file.write_text(json.dumps(episode.task_data, default=str), encoding="utf-8")
            words = []
            for word in self._words:
                word = word.replace("{task_file}", str(task_file))
                words.append(word.replace("{reward_file}", str(reward_file)))
            tokens = {"OPENAI_API_KEY": episode.token, "ANTHROPIC_API_KEY": episode.token}
            variables = self._variables(episode.base_url, folder, tokens)
            options = launcher_options(self._config, self._words, folder, (TASK_FILE, REWARD_FILE), episode.base_url)
            output = await self._run(words, options, variables)
            return self._result(output, reward_file, episode)

    async def serve(self, base_url: str, token: str) -> None:
        """Run the command as a service, which reads its token in `MARL_RAY_SERVICE_TOKEN`. Raises ProgramFailed."""
        with tempfile.TemporaryDirectory(prefix="marl_ray_service_") as folder:
            variables = self._variables(base_url, folder, {"MARL_RAY_SERVICE_TOKEN": token})
            options = launcher_options(self._config, self._words, folder, (), base_url)
            await self._run(self._words, options, variables)

    def _variables(self, base_url: str, folder: str, tokens: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the command."""
        variables = {}
        for name in (*VARIABLES, *self._config.pass_variables):
            if name in os.environ:
                variables[name] = os.environ[name]
        variables["OPENAI_BASE_URL"] = base_url
        # Anthropic's client adds /v1 itself.
        variables["ANTHROPIC_BASE_URL"] = base_url.removesuffix("/v1")
        variables["TMPDIR"] = folder
        # The order of a set of texts would otherwise change the prompts of a program from run to run.
        variables["PYTHONHASHSEED"] = "0"
        if self._config.sandbox == "namespaces":
            variables["HOME"] = folder
        return {**variables, **tokens}

    async def _run(self, words: list[str], options: str, variables: dict[str, str]) -> bytes:
        """Return the end of the command's output. Raises ProgramFailed for an exit code other than 0."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(*LAUNCHER, options, str(os.getpid()), *words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=variables,
                start_new_session=True,  # Ctrl-C reaches the driver alone, which ends its commands
            )
        except OSError as error:  # too many processes, open files or bytes of arguments
            raise ProgramFailed(f"the command cannot be started ({error.strerror})") from None
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [asyncio.ensure_future(_end_of(stream)) for stream in (process.stdout, process.stderr)]
        try:
            output, errors = await gather(*readers)
            code = await process.wait()
        finally:
            # Also after a time limit: descendants of the command may live on, with open outputs.
            await _end(process)
            for reader in readers:
                reader.cancel()
        if code:
            lines = _lines(errors) or ["no message"]
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise ProgramFailed(f"the command ended with {how}: {lines[-1][:200]}")
        return output

    def _result(self, output: bytes, reward_file: Path, episode: ProgramEpisode) -> Any:
        source = self._config.reward
        lines = _lines(output)
        if source == "file":
            try:
                # The command may have written a file without an end.
                with reward_file.open("rb") as file:
                    return parse_json(file.read(MAX_REWARD_BYTES).decode(errors="replace"), "the reward file")
            except OSError as error:
                raise ProgramFailed(f"the reward file cannot be read ({error.strerror})") from None
        if source == "post":
            if episode.posted is None:
                raise ProgramFailed("no reward was posted to /v1/episode/reward")
            return episode.posted
        if source == "judge":  # answers, if the last line has them
            value = json_or(lines[-1], None) if lines else None
            return value if isinstance(value, Mapping) else {}
        if not lines:
            raise ProgramFailed("the command printed no line with a reward")
        return parse_json(lines[-1], "the last line of its output")


def _lines(output: bytes) -> list[str]:
    """Return the lines of an output that are not empty."""
    lines = output.decode(errors="replace").splitlines()
    return list(filter(str.strip, lines))


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the launcher, which kills the command with its descendants."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(CLOSE_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def _end_of(stream: asyncio.StreamReader) -> bytes:
    """Return the last KEPT_BYTES of a stream."""
    kept = b""
    while chunk := await stream.read(KEPT_BYTES):
        kept = (kept + chunk)[-KEPT_BYTES:]
    return kept
