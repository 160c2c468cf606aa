"""Rollout throughput through the gateway against the native environment, and 1,000 episodes at the same time:
python -m benchmarks.gateway_throughput

All programs give the same prompts to the same engines: the environment code_generation itself, an async function that
calls the agents over HTTP, and docs/examples/writers_service.py. Blocks of 8 tasks in groups of 8 alternate in one run,
so that a ratio compares neighbouring blocks. At last, 125 groups of 8 episodes are played at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from marl_ray.actors.run_actors import EvaluationActors
from marl_ray.cluster.ray_connection import connect, disconnect
from marl_ray.config import Config, from_keywords
from marl_ray.core.episode import Episode, Task
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.external.transition import Transition
from marl_ray.gateway.program_episode import ProgramEpisode
from marl_ray.rollout.episode_runner import make_runner

CONFIG = Path("configs/toy_hard.yaml")
BLOCK, GROUP, LOAD = 8, 8, 125
"""Tasks of a block, episodes per task, and tasks that are played at the same time."""
GATEWAY: dict[str, Any] = {"roles": ("helper", "main"), "reward": "judge", "judge": "code_generation"}
PROGRAMS: dict[str, dict[str, Any]] = {
    "function": {"function": "benchmarks.gateway_throughput:play", "concurrency": LOAD * GROUP},
    "service": {
        "command": f"{sys.executable} docs/examples/writers_service.py 32",
        "service": True,
        "concurrency": 32,
    },
}


async def play(episode: ProgramEpisode) -> dict[str, Any]:
    """Ask both agents over HTTP, on a connection of this episode."""
    where = urlsplit(episode.base_url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    answers = {}
    try:
        for name, prompt in episode.task_data["prompts"].items():
            body = json.dumps({"model": name, "messages": [{"role": "user", "content": prompt}]}).encode()
            writer.write(
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
                f"Authorization: Bearer {episode.token}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            answers[name] = json.loads(await reader.readexactly(size))["choices"][0]["message"]["content"] or ""
    finally:
        writer.close()
    return {"answers": answers}


def make_config() -> Config:
    """Return the config of the harder toy tasks with one turn."""
    keywords = {"num_turns": 1, "num_generations": GROUP}
    return from_keywords(CONFIG, "magrpo", keywords)


def failures(episodes: Sequence[Episode]) -> int:
    """Return the number of episodes without a reward."""
    return sum(GROUP if one.root is None else GROUP - len(one.root.joint_actions) for one in episodes)


async def measure(rounds: int) -> None:
    native = make_config()
    configs = {"native": native}
    for name, settings in PROGRAMS.items():
        gateway = replace(native.gateway, **GATEWAY, **settings)
        configs[name] = replace(native, environment="gateway", gateway=gateway)
    actors, environments, runners = EvaluationActors(native), [], {}
    tasks = load_tasks(native.dataset.name, "train", native.dataset.type, "skip")
    try:
        await actors.start()
        generators = await actors.start_generators([native] * native.num_agents)
        for name, config in configs.items():
            environments.append(ENVIRONMENTS.get(config.environment).from_config(config))
            transition = Transition(config.external, environments[-1])
            runners[name] = make_runner(config, environments[-1], transition, generators, actors.sandbox)

        async def block(name: str, number: int, chosen: Sequence[Task]) -> float:
            started = time.perf_counter()
            episodes = await asyncio.gather(*(runners[name].run_episode(t, GROUP, "train", number) for t in chosen))
            spent = time.perf_counter() - started
            if lost := failures(episodes):
                raise RuntimeError(f"{name}: {lost} episodes were lost: {episodes[0].stops}")
            return len(chosen) * GROUP / spent

        for name in runners:
            await block(name, 0, tasks[:BLOCK])  # starts servers and services
        ratios: dict[str, list[float]] = {name: [] for name in PROGRAMS}
        for number in range(1, rounds + 1):
            chosen = [tasks[(number * BLOCK + place) % len(tasks)] for place in range(BLOCK)]
            order = list(runners) if number % 2 else list(reversed(runners))
            rates = {name: await block(name, number, chosen) for name in order}
            for name, of_program in ratios.items():
                of_program.append(rates[name] / rates["native"])
            print("  ".join(f"{name} {rate:.1f}/s" for name, rate in rates.items()), flush=True)
        for name, found in ratios.items():
            low, middle, high = min(found), statistics.median(found), max(found)
            print(f"{name} / native: median {middle:.3f} (from {low:.3f} to {high:.3f}, {rounds} blocks)")
        together = [tasks[place % len(tasks)] for place in range(LOAD)]
        rate = await block("function", rounds + 1, together)
        print(f"{LOAD * GROUP} episodes at the same time: none lost, {rate:.1f}/s, {LOAD * GROUP / rate:.1f} s")
    finally:
        for environment in environments:
            await environment.close()
        await actors.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    connect(verbose=False)
    try:
        asyncio.run(measure(options.rounds))
    finally:
        disconnect()


if __name__ == "__main__":
    main()
