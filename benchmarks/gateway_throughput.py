"""Rollout throughput and processor time through the gateway against the native environment, and 1,000 episodes at the
same time: python -m benchmarks.gateway_throughput

All programs give the same prompts to the same engines:

| program | calls |
|---|---|
| native | the environment code_generation itself: one request of 8 completions per task and agent |
| in process | an async function with `episode.ask`, both agents at the same time |
| function | an async function over HTTP, both agents at the same time |
| in turn | the same, one agent after the other |
| service | docs/examples/writers_service.py: the openai client in 64 threads, one agent after the other |

Blocks of 8 tasks in groups of 8 alternate in one run, so that a ratio compares neighbouring blocks. Processor seconds
are read from the operating system for each process. On two busy cores they bound the throughput, and they depend less
than times on other programs of the machine. At last, 125 groups of 8 episodes are played at the same time.

Other arguments are overrides of configs/toy_hard.yaml, for example `model.name=bundled:smollm2-135m`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from marl_ray.actors.run_actors import EvaluationActors
from marl_ray.cluster.ray_connection import connect, disconnect
from marl_ray.config import Config, from_keywords
from marl_ray.config.values import parse_overrides
from marl_ray.core.episode import Episode, Task
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.plugins.gateway.options import GatewayConfig
from marl_ray.plugins.gateway.program_episode import ProgramEpisode
from marl_ray.rollout.turn_player import make_player

CONFIG = Path("configs/toy_hard.yaml")
BLOCK, GROUP, LOAD = 8, 8, 125
"""Tasks of a block, episodes per task, and tasks that are played at the same time."""
GATEWAY: dict[str, Any] = {"roles": ("helper", "main"), "reward": "judge", "judge": "code_generation"}
PROGRAMS: dict[str, dict[str, Any]] = {
    "in process": {"function": "benchmarks.gateway_throughput:play_in_process", "concurrency": LOAD * GROUP},
    "function": {"function": "benchmarks.gateway_throughput:play", "concurrency": LOAD * GROUP},
    "in turn": {"function": "benchmarks.gateway_throughput:play_in_turn", "concurrency": LOAD * GROUP},
    "service": {
        "command": f"{sys.executable} docs/examples/writers_service.py {BLOCK * GROUP}",
        "service": True,
        "concurrency": BLOCK * GROUP,
    },
}
PROCESSES = {
    "GenerationActor": "engines",
    "SandboxWorker": "sandbox",
    "marl_ray.sandbox": "sandbox",
    "writers_service": "program",
}
"""Name in the table by a part of the command line."""


async def play_in_process(episode: ProgramEpisode) -> dict[str, Any]:
    """Ask both agents at the same time, without HTTP."""
    prompts = episode.task_data["prompts"]
    answers = await asyncio.gather(*(episode.ask(name, prompt) for name, prompt in prompts.items()))
    return {"answers": dict(zip(prompts, answers, strict=True))}


async def play(episode: ProgramEpisode) -> dict[str, Any]:
    """Ask both agents at the same time over HTTP."""
    prompts = episode.task_data["prompts"]
    answers = await asyncio.gather(*(ask(episode, name, prompt) for name, prompt in prompts.items()))
    return {"answers": dict(zip(prompts, answers, strict=True))}


async def play_in_turn(episode: ProgramEpisode) -> dict[str, Any]:
    """Ask one agent after the other over HTTP."""
    prompts = episode.task_data["prompts"]
    return {"answers": {name: await ask(episode, name, prompt) for name, prompt in prompts.items()}}


async def ask(episode: ProgramEpisode, name: str, prompt: str) -> str:
    """Return an agent's answer, on a connection of this call."""
    where = urlsplit(episode.base_url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        body = json.dumps({"model": name, "messages": [{"role": "user", "content": prompt}]}).encode()
        writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {episode.token}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        reply: str | None = json.loads(await reader.readexactly(size))["choices"][0]["message"]["content"]
        return reply or ""
    finally:
        writer.close()


def processor_seconds() -> Counter[str]:
    """Return the processor seconds so far of this process, the driver, and of its descendants, by `PROCESSES`."""
    own = psutil.Process()
    found = Counter({"driver": sum(own.cpu_times()[:4])})  # with ended children
    for process in own.children(recursive=True):
        try:
            line, spent = " ".join(process.cmdline()), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        name = next((name for part, name in PROCESSES.items() if part in line), "others")
        found[name] += sum(spent[:4])
    return found


def make_config(overrides: list[str]) -> Config:
    """Return the config of the harder toy tasks with one turn."""
    keywords = {"num_turns": 1, "num_generations": GROUP}
    return from_keywords(CONFIG, "magrpo", keywords, parse_overrides(overrides))


def failures(episodes: Sequence[Episode]) -> int:
    """Return the number of episodes without a reward."""
    return sum(GROUP if one.root is None else GROUP - len(one.root.joint_actions) for one in episodes)


async def measure(native: Config, rounds: int, programs: Sequence[str]) -> None:
    configs = {"native": native}
    for name in programs:
        gateway = replace(native.section(GatewayConfig), **GATEWAY, **PROGRAMS[name])
        sections = {**native.plugin_sections, "gateway": gateway}
        configs[name] = replace(native, environment="gateway", plugin_sections=sections)
    actors, environments, players = EvaluationActors(native.resources, native.sandbox), [], {}
    tasks = load_tasks(native.dataset.name, "train", native.dataset.type, "skip")
    try:
        await actors.start()
        generators = await actors.start_generators([native] * native.num_agents)
        for name, config in configs.items():
            environments.append(ENVIRONMENTS.get(config.environment).from_config(config))
            players[name] = make_player(config, environments[-1], generators, actors.sandbox)

        async def block(name: str, number: int, chosen: Sequence[Task]) -> float:
            started = time.perf_counter()
            # The name is a part of the random streams: equal answers of two programs would share their verdicts.
            episodes = await asyncio.gather(*(players[name].run_episode(t, GROUP, name, number) for t in chosen))
            spent = time.perf_counter() - started
            if lost := failures(episodes):
                raise RuntimeError(f"{name}: {lost} episodes were lost: {episodes[0].stops}")
            return len(chosen) * GROUP / spent

        for name in players:
            await block(name, 0, tasks[:BLOCK])  # starts servers and services
        ratios: dict[str, list[float]] = {name: [] for name in programs}
        spent: dict[str, list[Counter[str]]] = {name: [] for name in players}
        for number in range(1, rounds + 1):
            chosen = [tasks[(number * BLOCK + place) % len(tasks)] for place in range(BLOCK)]
            names = list(players)  # a rotation, because a later program finds more verdicts in the cache
            order = names[number % len(names) :] + names[: number % len(names)]
            rates = {}
            for name in order:
                before = processor_seconds()
                rates[name] = await block(name, number, chosen)
                after = processor_seconds()
                spent[name].append(Counter({key: after[key] - before[key] for key in after}))
            for name, of_program in ratios.items():
                of_program.append(rates[name] / rates["native"])
            print("  ".join(f"{name} {rate:.1f}/s" for name, rate in rates.items()), flush=True)
        for name, found in ratios.items():
            low, middle, high = min(found), statistics.median(found), max(found)
            print(f"{name} / native: median {middle:.3f} (from {low:.3f} to {high:.3f}, {rounds} blocks)")
        for name, blocks in spent.items():
            of_episode = {
                key: 1000 * statistics.median(one[key] for one in blocks) / (BLOCK * GROUP) for key in blocks[0]
            }
            parts = ", ".join(f"{key} {value:.1f}" for key, value in of_episode.items())
            print(f"{name}: {sum(of_episode.values()):.1f} ms of processor time per episode ({parts})")
        if "function" not in programs:
            return
        together = [tasks[place % len(tasks)] for place in range(LOAD)]
        rate = await block("function", rounds + 1, together)
        print(f"{LOAD * GROUP} episodes at the same time: none lost, {rate:.1f}/s, {LOAD * GROUP / rate:.1f} s")
    finally:
        for environment in environments:
            await environment.close()
        await actors.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    options, overrides = parser.parse_known_args()
    config = make_config(overrides)
    connect(verbose=False)
    try:
        asyncio.run(measure(config, options.rounds, options.programs))
    finally:
        disconnect()


if __name__ == "__main__":
    main()
