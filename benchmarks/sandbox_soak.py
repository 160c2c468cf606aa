"""Soak test: run many programs, a tenth of them hostile, in the Ray workers, and check verdicts, memory and leaks.

    python -m benchmarks.sandbox_soak [--programs 20000] [--workers 2] [--isolation auto] [--json FILE]

Exits with status 1 if a verdict is wrong, if a process or descriptor is left, or if the memory of the workers (each
with its zygote and judge) differs by more than 10 % between the first and the last fifth of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ray

from benchmarks.sandbox_programs import KnownProgram, mixture
from marl_ray.actors.sandbox_pool import SandboxPool
from marl_ray.cluster.ray_private import init_on_localhost
from marl_ray.sandbox import SandboxSettings

CHUNK = 250
MEMORY_TOLERANCE = 0.10
DESCRIPTORS_OF_RAY = 4
"""Sockets that Ray may open in its workers during the run; a leak per program would be hundreds."""


@dataclass(frozen=True)
class Usage:
    """Resource use of the workers and their child processes: resident MiB, descriptors, child processes."""

    memory_mb: float
    descriptors: int
    processes: int


@dataclass
class SoakResult:
    """Result of a soak test. `wrong` lists programs with an unexpected verdict."""

    programs: int = 0
    hostile: int = 0
    seconds: float = 0.0
    isolation: str = ""
    wrong: list[str] = field(default_factory=list)
    infra_errors: int = 0
    replacements: int = 0
    samples: list[Usage] = field(default_factory=list)
    before: Usage = Usage(0, 0, 0)
    """Idle workers after the first chunk."""
    after: Usage = Usage(0, 0, 0)
    """Idle workers at the end."""

    def fifth(self, which: int) -> list[Usage]:
        """Return the samples of the first (0) or last (-1) fifth of the run."""
        size = max(1, len(self.samples) // 5)
        return self.samples[:size] if which == 0 else self.samples[-size:]

    @property
    def memory_growth(self) -> float:
        """Relative change of the median memory between the first and the last fifth."""
        first, last = (statistics.median(s.memory_mb for s in self.fifth(n)) for n in (0, -1))
        return last / first - 1

    def problems(self) -> list[str]:
        """Return the violated conditions."""
        problems = [f"wrong verdicts: {self.wrong[:5]}"] if self.wrong else []
        if self.infra_errors:
            problems.append(f"{self.infra_errors} programs were not run (infra_error)")
        if abs(self.memory_growth) > MEMORY_TOLERANCE:
            problems.append(f"memory changed by {self.memory_growth:+.1%}")
        for name, allowed in (("descriptors", DESCRIPTORS_OF_RAY), ("processes", 0)):
            first, last = getattr(self.before, name), getattr(self.after, name)
            if last > first + allowed:
                problems.append(f"{name} grew from {first} to {last}")
        return problems


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = int(Path(f"/proc/{entry}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry))
    return children


def worker_pids() -> list[int]:
    """Return the process ids of the sandbox workers below this process, by the title that Ray gives them."""
    pids = []
    for pid in descendants(os.getpid()):
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::SandboxWorker"):
            pids.append(pid)
    return sorted(pids)


def descendants(pid: int) -> list[int]:
    """Return the ids of all descendants of a process, in any order."""
    children, pids = _children(), []
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            pids.append(child)
            todo.append(child)
    return pids


def take_sample() -> Usage:
    memory = descriptors = processes = 0
    for worker in worker_pids():
        children = descendants(worker)
        processes += len(children)
        for pid in (worker, *children):
            try:
                descriptors += len(os.listdir(f"/proc/{pid}/fd"))
                pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
            except OSError:
                continue
            memory += pages * os.sysconf("SC_PAGESIZE")
    return Usage(round(memory / 2**20, 2), descriptors, processes)


async def idle_sample(limit: Usage | None, seconds: float = 5.0) -> Usage:
    """Return a sample after killed guests have disappeared: at most `limit`, or equal twice in a row."""
    deadline = time.monotonic() + seconds
    previous = take_sample()
    while time.monotonic() < deadline:
        await asyncio.sleep(0.1)
        sample = take_sample()
        if limit is None:
            if (sample.processes, sample.descriptors) == (previous.processes, previous.descriptors):
                break
        elif sample.processes <= limit.processes and sample.descriptors <= limit.descriptors:
            break
        previous = sample
    return sample


async def soak(pool: SandboxPool, cases: list[KnownProgram], chunk: int = CHUNK) -> SoakResult:
    """Run the cases in chunks and sample the idle workers between chunks."""
    result = SoakResult(programs=len(cases))
    started = time.monotonic()
    for begin in range(0, len(cases), chunk):
        part = cases[begin : begin + chunk]
        reports = await pool.execute([case.program for case in part])
        for case, report in zip(part, reports, strict=True):
            result.hostile += case.name not in ("honest", "wrong")
            result.isolation = report.isolation
            if report.infra_error is not None:
                result.infra_errors += 1
            elif report.passed != case.passes or report.total != len(case.program.tests):
                result.wrong.append(f"{case.name}: {[(t.status, t.message) for t in report.tests]}"[:300])
        result.samples.append(take_sample())
        if begin == 0:
            result.before = await idle_sample(None)
        if sys.stderr.isatty():
            print(f"\r{begin + len(part)} programs, {result.samples[-1]}", end="", file=sys.stderr)
    result.seconds = time.monotonic() - started
    result.after = await idle_sample(result.before)
    result.replacements = pool.workers.lost_count
    return result


async def run(arguments: argparse.Namespace) -> SoakResult:
    pool = SandboxPool(SandboxSettings(isolation=arguments.isolation), arguments.workers)
    for line in await pool.start():
        print(line)
    try:
        cases = list(mixture(arguments.programs, hostile_share=0.1, seed=arguments.seed))
        return await soak(pool, cases)
    finally:
        await pool.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=20000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--isolation", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all samples to this file")
    arguments = parser.parse_args()
    init_on_localhost(num_cpus=arguments.workers, include_dashboard=False, log_to_driver=False)
    result = asyncio.run(run(arguments))
    remaining = wait_for_no_workers()
    ray.shutdown()
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(result), indent=1), encoding="utf-8")
    print(f"{result.programs} programs, {result.hostile} hostile, {result.isolation}, {result.seconds:.0f} s")
    print(f"{result.programs / result.seconds:.0f} programs/s; workers replaced: {result.replacements}")
    for name, samples in (("first fifth", result.fifth(0)), ("last fifth", result.fifth(-1))):
        middle: dict[str, Any] = {k: statistics.median(getattr(s, k) for s in samples) for k in asdict(samples[0])}
        print(f"{name}: {middle}")
    print(f"memory: {result.memory_growth:+.1%}; idle before: {result.before}; idle after: {result.after}")
    problems = result.problems() + ([f"processes left: {remaining}"] if remaining else [])
    kinds = Counter(text.partition(":")[0] for text in result.wrong)
    print("\n".join(problems) + f"\n{kinds}" if problems else "all verdicts correct, no growth, no process left")
    return 1 if problems else 0


def wait_for_no_workers(seconds: float = 10.0) -> list[int]:
    """Return the sandbox workers that are still alive after the timeout."""
    deadline = time.monotonic() + seconds
    while (remaining := worker_pids()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return remaining


if __name__ == "__main__":
    sys.exit(main())
