"""Load on a running server: throughput, latencies, errors, and the memory of its processes.

    marl-ray serve runs/one --port 8000 &
    python -m benchmarks.serving http://127.0.0.1:8000 --concurrency 200 --seconds 300 --pid PID

Clients ask the team tasks with tests, and each agent texts of random length, in turn. With `--pid` the memory of the
server's process tree is printed every minute. The command fails if a request fails, or if this memory grows by more
than 5 % after the first quarter of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import string
import time
from collections import Counter
from itertools import count
from typing import Any

import httpx
import psutil

from marl_ray.data.loading import load_tasks

MAX_GROWTH = 0.05
LETTERS, MAX_LETTERS = string.ascii_lowercase + " \n", 400


def process_memory(pid: int | None) -> int:
    """Return the memory in bytes of a process and its descendants, shared pages counted once per process; 0 without a
    process."""
    if pid is None:
        return 0
    root, total = psutil.Process(pid), 0
    for process in [root, *root.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


async def print_memory(pid: int) -> None:
    """Print the memory of a process tree every minute."""
    for minute in count(1):
        await asyncio.sleep(60)
        print(f"minute {minute}: {await asyncio.to_thread(process_memory, pid) / 2**20:.0f} MiB", flush=True)


async def ask_until(
    client: httpx.AsyncClient, number: int, end: float, tasks: list[Any], found: dict[str, Any]
) -> None:
    """Send one request after another until `end`."""
    sent, texts = 0, random.Random(number)
    while time.monotonic() < end:
        task, model = tasks[(number + sent) % len(tasks)], ("team", "agent_0", "agent_1")[(number + sent) % 3]
        sent += 1
        is_team = model == "team"
        content = task.prompt if is_team else "".join(texts.choices(LETTERS, k=texts.randint(1, MAX_LETTERS)))
        body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": content}]}
        if is_team:
            body["marl_ray"] = {"entry_point": task.fields["entry_point"], "tests": task.fields["tests"]}
        start = time.monotonic()
        try:
            reply = await client.post("/v1/chat/completions", json=body)
            status: int | str = reply.status_code
            if status == 200:
                found["tokens"] += reply.json()["usage"]["completion_tokens"]
        except httpx.HTTPError as error:
            status = f"{type(error).__name__} after {time.monotonic() - start:.0f} s"
        found["statuses"][status] += 1
        found["seconds"].setdefault(model, []).append(time.monotonic() - start)


async def measure(options: argparse.Namespace) -> int:
    """Run the load and print the measurements. Return the exit code."""
    tasks = load_tasks("bundled:toy", "eval", "toy")
    found: dict[str, Any] = {"statuses": Counter(), "seconds": {}, "tokens": 0}
    limits = httpx.Limits(max_connections=options.concurrency)
    async with httpx.AsyncClient(base_url=options.address, timeout=600, limits=limits) as client:
        start = time.monotonic()
        end = start + options.seconds
        clients = [
            asyncio.ensure_future(ask_until(client, number, end, tasks, found)) for number in range(options.concurrency)
        ]
        printing = None if options.pid is None else asyncio.ensure_future(print_memory(options.pid))
        await asyncio.sleep(options.seconds / 4)
        early = await asyncio.to_thread(process_memory, options.pid)
        await asyncio.gather(*clients)
        seconds = time.monotonic() - start
        if printing is not None:
            printing.cancel()
        late = await asyncio.to_thread(process_memory, options.pid)
    total = sum(found["statuses"].values())
    print(f"{total} requests in {seconds:.0f} s: {total / seconds:.1f} per s, {found['tokens'] / seconds:.0f} tokens/s")
    print(f"statuses: {dict(found['statuses'])}")
    for model, values in sorted(found["seconds"].items()):
        ordered = sorted(values)
        tail = ordered[int(0.99 * (len(ordered) - 1))]
        print(f"{model}: {len(values)} requests, median {statistics.median(values):.2f} s, 99 % {tail:.2f} s")
    growth = late / early - 1 if early else 0.0
    if options.pid is not None:
        print(f"memory: {early / 2**20:.0f} MiB after a quarter, {late / 2**20:.0f} MiB at the end ({growth:+.1%})")
    return int(set(found["statuses"]) != {200} or growth > MAX_GROWTH)


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="address of the server, such as http://127.0.0.1:8000")
    parser.add_argument("--concurrency", type=int, default=200, help="requests at a time; default: 200")
    parser.add_argument("--seconds", type=float, default=300, help="default: 300")
    parser.add_argument("--pid", type=int, help="process of marl-ray serve, whose memory is measured")
    raise SystemExit(asyncio.run(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
