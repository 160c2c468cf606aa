"""Services that ask for tasks, and episodes that are run again after a failure."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from marl_ray.core.episode import Episode, Task
from marl_ray.environments import ENVIRONMENTS
from marl_ray.plugins.gateway.service_program import ServiceProgram
from marl_ray.toy import BASE_PATH
from tests.plugins.gateway.scripted_agents import ASK, ScriptedAgent, command, gateway_config, play, root
from tests.rollout.helpers import NoExecutor

SERVE = """
TOKEN = os.environ["MARL_RAY_SERVICE_TOKEN"]

def get(path, token):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, headers={"Authorization": "Bearer " + token})
    return json.loads(urllib.request.urlopen(request).read() or b"null")

while True:
    episode = get("/tasks/next", TOKEN)
    if episode is None:
        continue
    os.environ["OPENAI_API_KEY"] = episode["token"]
"""
TASKS = [Task(f"task/{number}", "Count.", {"limit": number}) for number in range(4)]


def counting() -> list[ScriptedAgent]:
    return [ScriptedAgent(str(BASE_PATH), lambda _, seed: f"return {seed}") for _ in range(2)]


def served(tmp_path: Path, body: str, **gateway: Any) -> list[Episode]:
    """Return the episodes of `TASKS`, with the code of a service for each episode."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    (tmp_path / "service.py").write_text(ASK + SERVE + lines)
    settings: dict[str, Any] = {
        "command": command(tmp_path / "service.py"),
        "service": True,
        "reward": "post",
    } | gateway
    return asyncio.run(play(gateway_config(**settings), counting(), *TASKS))


def test_one_process_plays_all_episodes(tmp_path: Path) -> None:
    body = (
        "ask('coder', 'x')\n"
        "call('/episode/reward', {'reward': episode['task']['limit'], 'metrics': {'pid': os.getpid()}})"
    )
    nodes = [root(episode) for episode in served(tmp_path, body)]
    assert [[action.reward for action in node.joint_actions] for node in nodes] == [[n, n] for n in range(4)]
    assert len({action.outcome.metrics["pid"] for node in nodes for action in node.joint_actions}) == 1
    assert all(len(node.calls[0]) == 2 for node in nodes)


def test_a_service_may_say_that_an_episode_failed(tmp_path: Path) -> None:
    body = "limit = episode['task']['limit']\ncall('/episode/reward', {'failed': 'no page'} if limit == 1 else 1)"
    episodes = served(tmp_path, body)
    assert [episode.root is None for episode in episodes] == [False, True, False, False]
    assert "it has failed: no page" in episodes[1].stops[0].detail


def test_a_service_that_dies_is_started_again_and_its_episodes_are_repeated(tmp_path: Path) -> None:
    # The service is killed in its second episode, after an answer. The episode is played again, with the same answer.
    seen = tmp_path / "seen"
    body = (
        "answer = ask('coder', 'x')\n"
        f"with open({str(seen)!r}, 'a') as file: print(episode['task']['limit'], answer, file=file)\n"
        f"if len(open({str(seen)!r}).readlines()) == 2: os.kill(os.getpid(), 9)\n"
        "call('/episode/reward', 1)"
    )
    nodes = [root(episode) for episode in served(tmp_path, body, retries=2)]
    undisturbed = [root(episode) for episode in served(tmp_path, "ask('coder', 'x')\ncall('/episode/reward', 1)")]
    assert [node.calls for node in nodes] == [node.calls for node in undisturbed]
    counts = [action.outcome.counts["gateway/retried"] for node in nodes for action in node.joint_actions]
    assert sum(counts) >= 1
    assert sum(action.outcome.counts["gateway/failed"] for node in nodes for action in node.joint_actions) == 0
    assert len(seen.read_text().splitlines()) == 9


def test_a_failed_command_is_run_again_with_the_same_answers(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    script = (
        "answer = ask('coder', 'x')\nask('tester', 'y')\n"
        f"with open({str(marks)!r}, 'a') as file: print(answer, file=file)\n"
        f"if open({str(marks)!r}).read().count(answer) < 3: sys.exit(1)\nprint(1)\n"
    )
    (tmp_path / "script.py").write_text(ASK + script)
    config = gateway_config(command=command(tmp_path / "script.py"), retries=2)
    (episode,) = asyncio.run(play(config, counting()))
    node = root(episode)
    assert [action.outcome.counts["gateway/retried"] for action in node.joint_actions] == [2, 2]
    assert [len(calls) for calls in node.calls] == [2, 2]  # only the calls of the last attempt
    assert len(set(marks.read_text().splitlines())) == 2


def test_attempts_are_limited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    marks = tmp_path / "marks"
    (tmp_path / "script.py").write_text(f"import os\nopen({str(marks)!r}, 'a').write('x')\nos._exit(3)\n")
    config = gateway_config(command=command(tmp_path / "script.py"), retries=2)
    (episode,) = asyncio.run(play(config, counting()))
    assert episode.root is None
    assert marks.read_text() == "x" * 6
    assert caplog.text.count("exit code 3") == 2


def test_the_token_of_a_service_that_the_user_starts_is_in_a_private_file(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    config = gateway_config(service=True, reward="post", roles=["coder", "tester"], timeout_s=30)

    async def token_file() -> Path:
        program = ServiceProgram(config.gateway)
        for _ in range(2):
            program._start("http://127.0.0.1:1/v1")
        (line,) = [line for line in caplog.messages if "waiting for a service" in line]
        path = Path(line.rpartition(" ")[2])
        assert path.read_text() == program.token
        assert path.stat().st_mode & 0o777 == 0o600
        assert program.token not in caplog.text
        await program.close()
        return path

    assert not asyncio.run(token_file()).exists()


def test_an_episode_that_was_given_to_a_lost_service_is_offered_again_at_once() -> None:
    config = gateway_config(service=True, reward="post", roles=["coder", "tester"], timeout_s=30)
    environment = ENVIRONMENTS.get("gateway").from_config(config)
    runner = environment.player(config, counting(), NoExecutor())

    async def ask_and_leave(port: int) -> None:
        """Ask for an episode, and close the connection without reading the reply."""
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        lines = ["GET /v1/tasks/next HTTP/1.1", "Host: localhost", f"Authorization: Bearer {environment.program.token}"]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        writer.transport.abort()

    async def main() -> tuple[Episode, float]:
        server = await environment.server()
        playing = asyncio.ensure_future(runner.run_episode(TASKS[0], 2, "train", 0))
        port = int(server.base_url.split(":")[2].removesuffix("/v1"))
        while len(environment.program._waiting) < 2:
            await asyncio.sleep(0)
        for _ in range(2):
            await ask_and_leave(port)
            await asyncio.sleep(0.3)
        async with httpx.AsyncClient(base_url=server.base_url, timeout=60) as client:
            begin = time.monotonic()
            for _ in range(2):
                headers = {"Authorization": f"Bearer {environment.program.token}"}
                given = (await client.get("/tasks/next", headers=headers)).json()
                headers = {"Authorization": f"Bearer {given['token']}"}
                await client.post("/episode/reward", headers=headers, json=1.0)
            return await playing, time.monotonic() - begin

    async def run() -> tuple[Episode, float]:
        try:
            return await main()
        finally:
            await environment.close()

    episode, seconds = asyncio.run(run())
    assert [action.reward for action in root(episode).joint_actions] == [1.0, 1.0]
    assert seconds < 10
