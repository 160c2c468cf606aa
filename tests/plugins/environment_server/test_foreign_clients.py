"""The served environment, played by the clients of OpenEnv and of verifiers, each in a Python environment of its own:
MARL_RAY_OPENENV_PYTHON and MARL_RAY_VERIFIERS_PYTHON are their interpreters (openenv-core 0.3, verifiers 0.4)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.factories import QUICKSTART, ROOT

OPENENV, VERIFIERS = (os.environ.get(f"MARL_RAY_{name}_PYTHON") for name in ("OPENENV", "VERIFIERS"))
ANSWERS = ["def aux(x):\n    return 7 * x\n", "def stretch(x):\n    return aux(x) + 2\n"]
"""Good answers to the first toy task."""
PLAY_OPENENV = """
import asyncio, json, sys
from openenv.core import GenericEnvClient
from openenv.core.env_server.types import ResetResponse, SchemaResponse, State, StepResponse
import httpx

address, answers = sys.argv[1], json.loads(sys.argv[2])

async def play():
    rewards = []
    async with GenericEnvClient(base_url=address) as env:
        result = await env.reset(seed=0)
        while not result.done:
            result = await env.step({"text": answers[result.observation["agent"]]})
            rewards.append(result.reward)
        State.model_validate(await env.state())
    return rewards

print(json.dumps(asyncio.run(play())))
first = ResetResponse.model_validate(httpx.post(address + "/reset", json={"seed": 0}).json())
body = {"action": {"text": "x"}, "episode_id": first.observation["episode_id"]}
StepResponse.model_validate(httpx.post(address + "/step", json=body).json())
SchemaResponse.model_validate(httpx.get(address + "/schema").json())
"""
PLAY_VERIFIERS = """
import asyncio, json, sys
import served_team
from verifiers.v1.clients import EvalClientConfig, ModelContext

async def play():
    env = served_team.load_environment(agent_0={"model": "model_0"}, agent_1={"model": "model_1"})
    context = ModelContext(model="model_0", client=EvalClientConfig(base_url=sys.argv[1], api_key_var="KEY"))
    async with env.serving():
        episode = await env.run_episode(next(iter(env.taskset)), context)
    assert episode.ok, [error.message for trace in episode.traces for error in trace.errors]
    return [[trace.agent.name, trace.reward] for trace in episode.traces]

print(json.dumps(asyncio.run(play())))
"""


class Model(BaseHTTPRequestHandler):
    """A model server that gives the good answer of each agent."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": ANSWERS[int(asked["model"][-1])]}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        reply: dict[str, Any] = {"id": "1", "object": "chat.completion", "created": 0, "model": asked["model"]}
        data = json.dumps(reply | {"choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    """The address of `marl-ray environment` for the quickstart."""
    command = [sys.executable, "-m", "marl_ray", "environment", "--config", str(QUICKSTART), "--port", "0"]
    server = subprocess.Popen([*command, "--workers", "1"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        found = next(filter(None, (re.search(r"http://127\.0\.0\.1:\d+", line) for line in server.stderr)))
        yield found[0]
    finally:
        server.terminate()
        server.communicate(timeout=60)


def output_of(python: str, script: str, *arguments: str, **variables: str) -> Any:
    """Return the last line of a script's output in the other environment, as JSON."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run(
        [python, "-c", script, *arguments], env=own, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(OPENENV is None, reason="MARL_RAY_OPENENV_PYTHON names no interpreter with openenv-core")
def test_a_client_of_openenv_plays_an_episode(address: str) -> None:
    assert output_of(str(OPENENV), PLAY_OPENENV, address, json.dumps(ANSWERS)) == [None, 4.0, None, 4.0]


@pytest.mark.slow
@pytest.mark.skipif(VERIFIERS is None, reason="MARL_RAY_VERIFIERS_PYTHON names no interpreter with verifiers")
def test_an_environment_of_verifiers_has_the_tasks_and_rewards(address: str) -> None:
    models = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=models.serve_forever, daemon=True).start()
    try:
        given = {"MARL_RAY_ENVIRONMENT": address, "KEY": "none", "PYTHONPATH": str(ROOT / "docs" / "examples")}
        played = output_of(str(VERIFIERS), PLAY_VERIFIERS, f"http://127.0.0.1:{models.server_port}/v1", **given)
    finally:
        models.shutdown()
        models.server_close()
    assert played == [["agent_0", 4.0], ["agent_1", 4.0]] * 2
