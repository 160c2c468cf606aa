"""Throughput and latency of the sandbox, compared with a fresh interpreter and a bare fork, with and without Ray.

    python -m benchmarks.sandbox_throughput [--rounds 7] [--isolation auto] [--workers N] [--check] [--json FILE]

Every round measures each variant once, one after the other, so a busy machine slows all of them. The output has medians
over the rounds, and medians of the ratios within each round. `--check` exits with status 1 if a ratio misses its
target. Programs have the size of a HumanEval solution and eight asserts; all differ, and groups of eight have equal
tests. "fork" is fork, exit and wait of a Python with the modules of the zygote loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks.sandbox_programs import honest
from marl_ray.sandbox import Program, Sandbox, SandboxSettings
from marl_ray.sandbox.bench import run_concurrently
from marl_ray.sandbox.host.isolation_levels import launch_spec
from marl_ray.sandbox.inside.zygote import preload

TARGETS = {"library_vs_fresh": 4.0, "ray_vs_library": 0.85, "latency_vs_fork": 5.0}
"""The first two are lower bounds, the last an upper bound."""

FORK_SCRIPT = """
import os, sys, time
for name in sys.argv[2:]:
    try:
        __import__(name)
    except ImportError:
        pass
times = []
for _ in range(int(sys.argv[1])):
    started = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    times.append(time.perf_counter() - started)
print(sorted(times)[len(times) // 2])
"""


@dataclass(frozen=True)
class Round:
    """One round: programs per second of each variant, and milliseconds of one program and of one fork."""

    fresh: float
    library: float
    ray: float
    latency_ms: float
    fork_ms: float

    def ratios(self) -> dict[str, float]:
        ratios = {"library_vs_fresh": self.library / self.fresh, "latency_vs_fork": self.latency_ms / self.fork_ms}
        return ratios | ({"ray_vs_library": self.ray / self.library} if self.ray else {})


class Programs:
    """A source of programs that have not run before."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> list[Program]:
        self._next += count
        return [honest(number) for number in range(self._next - count, self._next)]


def fresh_interpreter(program: Program) -> bool:
    """Run program and asserts in a new `python -I -S`; return whether all passed."""
    script = program.source + "\n" + "\n".join(program.tests)
    command = [os.path.realpath(sys.executable), "-I", "-S", "-c", script]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env={}).returncode == 0


def fork_server_modules(level: str) -> list[str]:
    """Return the modules that the zygote of a level imports: more if guests cannot read Python's library."""
    config = launch_spec(level).config
    unreadable = not config["may_open"] or (config["user"] is not None and not config["readable_by_all"])
    return (preload.COMMON + preload.RARE if unreadable else preload.COMMON).split()


def fork_ms(modules: Sequence[str], count: int = 60) -> float:
    """Return the median milliseconds of fork, exit and wait in an interpreter like the zygote."""
    command = [os.path.realpath(sys.executable), "-I", "-S", "-c", FORK_SCRIPT, str(count), *modules]
    return 1000 * float(subprocess.run(command, capture_output=True, check=True, env={}).stdout)


def expect(passed: bool) -> None:
    """Raise RuntimeError if a program failed, which would invalidate the benchmark."""
    if not passed:
        raise RuntimeError("a program did not pass its tests")


def measure(
    sandboxes: Sequence[Sandbox],
    execute: Callable[[Sequence[Program]], list[int]] | None,
    *,
    rounds: int,
    per_worker: int = 150,
) -> list[Round]:
    """Return one `Round` per round. `execute` runs programs through Ray and returns their passes; None skips Ray."""
    programs, results = Programs(), []
    workers = len(sandboxes)
    modules = fork_server_modules(sandboxes[0].level)

    def run_fresh() -> None:
        expect(all(fresh_interpreter(program) for program in programs.take(max(8, per_worker // 8))))

    def run_library(sandbox: Sandbox) -> None:
        expect(all(report.passed == 8 for report in sandbox.run_batch(programs.take(per_worker))))

    for number in range(rounds + 1):
        fresh = workers * max(8, per_worker // 8) / run_concurrently([run_fresh] * workers)
        library = workers * per_worker / run_concurrently([partial(run_library, s) for s in sandboxes])
        through_ray = 0.0
        if execute is not None:
            batch = programs.take(workers * per_worker)
            started = time.perf_counter()
            passed = execute(batch)
            through_ray = len(batch) / (time.perf_counter() - started)
            expect(passed == [8] * len(batch))
        single = []
        for program in programs.take(30):
            started = time.perf_counter()
            expect(sandboxes[0].run(program).passed == 8)
            single.append(time.perf_counter() - started)
        if number:  # the first round is a warm-up
            results.append(Round(fresh, library, through_ray, 1000 * statistics.median(single), fork_ms(modules)))
    return results


def summary(rounds: Sequence[Round]) -> dict[str, float]:
    """Return the medians of every figure and every ratio."""
    values = [asdict(one) | one.ratios() for one in rounds]
    return {name: round(statistics.median(value[name] for value in values), 3) for name in values[0]}


def misses(figures: dict[str, float]) -> list[str]:
    """Return the missed targets."""
    missed = []
    for name, target in TARGETS.items():
        value = figures.get(name)
        if value is not None and (value > target if name == "latency_vs_fork" else value < target):
            missed.append(f"{name} is {value}, the target is {target}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--isolation", default="auto")
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a target is missed")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    settings = SandboxSettings(isolation=arguments.isolation)
    sandboxes = [Sandbox(settings) for _ in range(arguments.workers)]
    for sandbox in sandboxes:
        sandbox.start()
    print(sandboxes[0].describe())
    if arguments.no_ray:
        results = measure(sandboxes, None, rounds=arguments.rounds)
    else:
        results = asyncio.run(_with_ray(settings, sandboxes, arguments))
    for sandbox in sandboxes:
        sandbox.close()
    figures = summary(results)
    for name, value in figures.items():
        print(f"{name:<18}{value:>10.2f}" + (f"   (target {TARGETS[name]})" if name in TARGETS else ""))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"summary": figures, "rounds": [asdict(one) for one in results]}, indent=1),
            encoding="utf-8",
        )
    missed = misses(figures)
    print("\n".join(missed) or "all targets met")
    return 1 if missed and arguments.check else 0


async def _with_ray(
    settings: SandboxSettings, sandboxes: Sequence[Sandbox], arguments: argparse.Namespace
) -> list[Round]:
    import ray

    from marl_ray.actors.sandbox_pool import SandboxPool
    from marl_ray.cluster.ray_private import init_on_localhost

    init_on_localhost(num_cpus=arguments.workers, include_dashboard=False, log_to_driver=False, configure_logging=False)
    pool = SandboxPool(settings, arguments.workers)
    await pool.start()
    loop = asyncio.get_running_loop()

    def execute(batch: Sequence[Program]) -> list[int]:
        reports = asyncio.run_coroutine_threadsafe(pool.execute(batch), loop).result()
        return [report.passed for report in reports]

    try:
        return await asyncio.to_thread(measure, sandboxes, execute, rounds=arguments.rounds)
    finally:
        await pool.close()
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
