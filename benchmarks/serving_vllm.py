"""Throughput of one agent behind `marl-ray serve` and behind vLLM's own server, which `vllm serve` starts.

    python -m benchmarks.serving_vllm runs/one [--agent agent_0] [--concurrency 1 16 64] [--seconds 20] [--rounds 3]

Starts both servers on this machine with the same model, engine settings and threads per engine. The servers answer the
same prompts through /v1/completions, in alternate blocks of `--seconds`, so that other load affects both sides. Prints
the completion tokens per second and the CPU milliseconds per token of all of a server's processes, medians over the
rounds, and the ratios of the throughputs. The exit code is 1 if a median ratio is below `--least`.

vLLM's server runs its engine in a process of its own, this package's in a Ray actor beside the engines of the other
agents, which are idle. Both engines have the threads of the config's generators (`resources.generator.cpus`), and the
same priority: by default Ray gives its workers a lower one (nice 15), which halves their share of a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import queue
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import aiohttp
import psutil

from marl_ray.actors.engine_arguments import CPU_SEQUENCES
from marl_ray.actors.engine_environment import engine_environment
from marl_ray.config import Config
from marl_ray.data.loading import load_tasks
from marl_ray.evaluation.model_sources import evaluated_models, find_model_sources, run_folder_of
from marl_ray.models.names import resolve_model
from marl_ray.storage.resume import SavedRun

START_S, STOP_S, REQUEST_S = 600, 120, 600


@contextmanager
def server(command: Sequence[str], environment: dict[str, str], line: str) -> Iterator[tuple[str, int]]:
    """Start a server, yield its output's first line that contains `line` and its process id, and stop the server."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
        encoding="utf-8",
    )
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for text in process.stdout:
            lines.put(text)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    log = ""
    try:
        while line not in (text := lines.get(timeout=START_S)):
            log += text
            if not text:
                raise SystemExit(f"{' '.join(command)} has ended:\n{log}")
        yield text, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=STOP_S)


@contextmanager
def vllm_server(config: Config, agent: int) -> Iterator[tuple[str, int]]:
    """Start vLLM's server with the settings of a generator on a CPU, and yield its address and process id."""
    generator, length = config.agents[agent].generator, config.model.max_length
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = {
        "model": resolve_model(config.agents[agent].name),
        "served-model-name": f"agent_{agent}",
        "host": "127.0.0.1",
        "port": port,
        "dtype": "float32",
        "max-model-len": length,
        "max-num-seqs": generator.max_num_seqs or CPU_SEQUENCES,
        "max-num-batched-tokens": max(8192, length),
        "kv-cache-memory-bytes": generator.kv_cache_mb * 2**20,
        "block-size": 32,
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += ["--no-enable-chunked-prefill", "--disable-log-stats", "--disable-uvicorn-access-log"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    environment = engine_environment(generator.cpus, False, True, verbose=False)
    del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]  # the server needs its second process
    with server(command, environment, "Application startup complete") as (_, pid):
        yield f"http://127.0.0.1:{port}", pid


@contextmanager
def team_server(run: str) -> Iterator[tuple[str, int]]:
    """Start `marl-ray serve`, and yield its address and process id."""
    command = [sys.executable, "-m", "marl_ray", "serve", run, "--port", "0"]
    with server(command, {"RAY_worker_niceness": "0"}, " at http://") as (line, pid):
        yield line.rpartition(" at ")[2].strip(), pid


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and its descendants have used."""
    root, total = psutil.Process(pid), 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


async def tokens_per_second(
    address: str, prompts: Sequence[str], options: argparse.Namespace, concurrency: int, seconds: float
) -> float:
    """Return the completion tokens per second of all requests that were answered within `seconds`."""
    tokens, start = 0, time.monotonic()

    async def ask(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal tokens
        while time.monotonic() < start + seconds:
            body = {
                "model": options.agent,
                "prompt": prompts[number % len(prompts)],
                "max_tokens": options.new_tokens,
                "temperature": 1.0,
                "stream": options.stream,
            }
            if options.stream:
                body["stream_options"] = {"include_usage": True}
            number += concurrency
            async with session.post(f"{address}/v1/completions", json=body) as reply:
                text = await reply.text()
                if reply.status != 200:
                    raise SystemExit(f"{address} answered {reply.status}: {text[:500]}")
            last = text.split("data: ")[-2] if options.stream else text
            if time.monotonic() < start + seconds:
                tokens += json.loads(last)["usage"]["completion_tokens"]

    timeout, connector = aiohttp.ClientTimeout(total=REQUEST_S), aiohttp.TCPConnector(limit=concurrency)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        await asyncio.gather(*(ask(session, number) for number in range(concurrency)))
    return tokens / seconds


def measure(options: argparse.Namespace) -> bool:
    """Print the throughput of both servers. Return whether every ratio reaches `--least`."""
    saved = SavedRun.read(run_folder_of(Path(options.run)))
    config = saved.config({})
    (model,) = evaluated_models(find_model_sources([options.run], config.agents), config, swap=False)
    prompts = [task.prompt for task in load_tasks("bundled:toy", "train")]
    passed = True
    with ExitStack() as stack:
        servers = {
            "vllm": stack.enter_context(vllm_server(model.config, int(options.agent.removeprefix("agent_")))),
            "marl-ray": stack.enter_context(team_server(options.run)),
        }
        for concurrency in options.concurrency:
            rates: dict[str, list[float]] = {name: [] for name in servers}
            costs: dict[str, list[float]] = {name: [] for name in servers}
            for number in range(-1, options.rounds):
                seconds = options.seconds if number >= 0 else options.seconds / 4  # the first round warms up
                for name, (address, pid) in servers.items():
                    before = cpu_seconds(pid)
                    rate = asyncio.run(tokens_per_second(address, prompts, options, concurrency, seconds))
                    if rate == 0:
                        raise SystemExit(f"{name} has not answered within {seconds:g} s: give more --seconds")
                    if number >= 0:
                        rates[name].append(rate)
                        costs[name].append(1000 * (cpu_seconds(pid) - before) / (rate * seconds))
            ratios = [ours / theirs for theirs, ours in zip(*rates.values(), strict=True)]
            median = statistics.median(ratios)
            print(f"{concurrency} requests at a time: ratio {median:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
            for name, values in rates.items():
                cost = statistics.median(costs[name])
                print(f"    {name}: {statistics.median(values):.0f} tokens/s, {cost:.2f} CPU ms per token", flush=True)
            passed = passed and median >= options.least
    return passed


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a run, of a checkpoint or of an export")
    parser.add_argument("--agent", default="agent_0")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=20, help="per block; default: 20")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--stream", action="store_true", help="stream the answers")
    parser.add_argument("--least", type=float, default=0.9, help="lowest ratio that passes; default: 0.9")
    raise SystemExit(int(not measure(parser.parse_args())))


if __name__ == "__main__":
    main()
