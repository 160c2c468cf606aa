"""Time that the gateway adds to a call, without an engine: python -m benchmarks.gateway_overhead

The agents answer at once, so that a call's time is HTTP, checks, rendering and encoding in the server, and the client.
A conversation of `--turns` calls is played over one connection with the standard library's client. The difference to
`/health`, an endpoint without work, is the part of the gateway itself.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from marl_ray.core.episode import Task
from marl_ray.environments import ENVIRONMENTS
from marl_ray.plugins.gateway.options import GatewayConfig
from marl_ray.plugins.gateway.program_episode import ProgramEpisode
from marl_ray.toy import BASE_PATH
from tests.plugins.gateway.scripted_agents import ScriptedAgent, gateway_config
from tests.rollout.helpers import NoExecutor


def timed(calls: Callable[[int], None], count: int) -> list[float]:
    """Return the milliseconds of each call."""
    found = []
    for number in range(count):
        started = time.perf_counter()
        calls(number)
        found.append(1000 * (time.perf_counter() - started))
    return found


def converse(address: str, token: str, turns: int, conversations: int) -> dict[str, list[float]]:
    """Return the milliseconds of calls of growing conversations, and of the endpoint without work."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}

    def health(_: int) -> None:
        connection.request("GET", "/health")
        connection.getresponse().read()

    messages: list[dict[str, str]] = []

    def ask(number: int) -> None:
        if number % turns == 0:
            messages.clear()
        messages.append({"role": "user", "content": f"Conversation {number // turns}, turn {number % turns}: go on."})
        body = json.dumps({"model": "coder", "messages": messages})
        connection.request("POST", "/v1/chat/completions", body, headers)
        reply = json.loads(connection.getresponse().read())
        messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})

    return {"health": timed(health, turns * conversations), "chat": timed(ask, turns * conversations)}


async def measure(turns: int, conversations: int) -> dict[str, list[float]]:
    config = gateway_config(function="tests.plugins.gateway.test_exact_ids:converses", max_calls=turns * conversations)
    agents = [ScriptedAgent(str(BASE_PATH), lambda *_: "def f(x):\n    return x") for _ in range(2)]
    environment = ENVIRONMENTS.get("gateway").from_config(config)
    runner = environment.player(config, agents, NoExecutor())
    server = await environment.server()
    access = runner._agents(False)
    episode = ProgramEpisode(
        Task("t", "p", {}), access, (1, ("train", 0)), config.section(GatewayConfig).max_calls, base_url=server.base_url
    )
    try:
        with server.serving(episode):
            return await asyncio.to_thread(converse, server.base_url, episode.token, turns, conversations)
    finally:
        await environment.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--conversations", type=int, default=50)
    options = parser.parse_args()
    for name, found in asyncio.run(measure(options.turns, options.conversations)).items():
        middle, high = statistics.median(found), statistics.quantiles(found, n=20)[-1]
        print(f"{name:<7} median {middle:.2f} ms, 95 % below {high:.2f} ms ({len(found)} calls)")


if __name__ == "__main__":
    main()
