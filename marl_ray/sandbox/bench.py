"""`marl-ray sandbox bench`: programs per second and latency of each level and of a fresh interpreter.

The programs resemble HumanEval solutions (one or two imports, a function, eight asserts), with eight programs per
problem.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
import timeit
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, NamedTuple

from marl_ray.sandbox.host.isolation_levels import LEVELS, SandboxSettings, interpreter
from marl_ray.sandbox.host.program import Program
from marl_ray.sandbox.host.sandbox import Sandbox

_MAXIMA = """from typing import List


def f(numbers: List[int]) -> List[int]:
    best = []
    for number in numbers:
        best.append(max(best[-1], number) if best else number)
    return best
"""
_PRIMES = """import math


def f(n):
    return [p for p in range(2, n) if all(p % d for d in range(2, math.isqrt(p) + 1))]
"""
_COUNTS = """from collections import Counter


def f(text):
    return dict(Counter(text.split()))
"""
_LETTERS = """def f(text):
    return "".join(sorted(set(text)))[::-1]
"""


def _asserts(expected: Callable[[Any], Any], arguments: Sequence[Any]) -> tuple[str, ...]:
    return tuple(f"assert f({argument!r}) == {expected(argument)!r}" for argument in arguments)


_ROUNDS = 5
_PROBLEMS = [
    (_MAXIMA, _asserts(lambda x: [max(x[: i + 1]) for i in range(len(x))], [[n, 3, n + 2, 1] for n in range(8)])),
    (_PRIMES, _asserts(lambda n: [p for p in range(2, n) if all(p % d for d in range(2, p))], range(10, 26, 2))),
    (_COUNTS, _asserts(lambda t: {w: t.split().count(w) for w in t.split()}, ["a b " * n + "c" for n in range(8)])),
    (_LETTERS, _asserts(lambda t: "".join(sorted(set(t), reverse=True)), ["hello world"[:n] for n in range(8)])),
]


class Measurement(NamedTuple):
    """Speed of one way to run programs."""

    name: str
    latency_ms: float
    programs_per_s: float
    vs_fresh: float
    """`programs_per_s` divided by the rate of fresh interpreters measured in the same minute."""


def _run_fresh(programs: Sequence[Program]) -> None:
    """Run each program with its asserts unprotected in one `python -I -S`."""
    for program in programs:
        command = [interpreter()[0], "-I", "-S", "-c", program.source + "\n".join(program.tests)]
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env={}, timeout=60)


def _fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _median_ms(actions: Iterable[Callable[[], object]]) -> float:
    return 1000 * statistics.median(timeit.timeit(action, number=1) for action in actions)


def run_concurrently(actions: Sequence[Callable[[], object]]) -> float:
    """Run each callable in a thread and return the wall time in seconds. Exceptions of the callables propagate."""
    with ThreadPoolExecutor(len(actions)) as threads:
        started = time.perf_counter()
        futures = list(map(threads.submit, actions))
        for future in futures:
            future.result()
        return time.perf_counter() - started


def _run_fresh_concurrently(programs: Sequence[Program], workers: int) -> float:
    return run_concurrently([partial(_run_fresh, programs[worker::workers]) for worker in range(workers)])


def _compare(sandboxes: Sequence[Sandbox], programs: Sequence[Program]) -> tuple[float, float]:
    """Return programs per second of concurrent sandboxes, and of the same number of fresh interpreters.

    The two alternate, so other load on the machine affects both; the interpreters run a fifth of the programs.
    """
    workers = len(sandboxes)
    seconds = fresh_seconds = fresh_programs = 0.0
    for number in range(_ROUNDS):
        part = programs[number::_ROUNDS]
        few = part[: max(workers, len(part) // 5)]
        fresh_programs += len(few)
        fresh_seconds += _run_fresh_concurrently(few, workers)
        shares = [partial(sandbox.run_batch, part[worker::workers]) for worker, sandbox in enumerate(sandboxes)]
        seconds += run_concurrently(shares)
    return len(programs) / seconds, fresh_programs / fresh_seconds


def measure(count: int = 400, workers: int | None = None, levels: Sequence[str] = ()) -> Iterator[Measurement]:
    """Measure a bare fork, fresh interpreters and every available level, each with `workers` in parallel."""
    workers = workers or os.cpu_count() or 1
    programs = []
    for index in range(count):
        source, tests = _PROBLEMS[index // 8 % len(_PROBLEMS)]
        # No two programs are equal, so that no cache answers for one.
        programs.append(Program(f"{source}\n# variant {index}\n", tests, "f"))
    yield Measurement("bare fork", _median_ms([_fork] * 100), 0.0, 0.0)
    few = programs[: max(16, count // 5)]
    seconds = _run_fresh_concurrently(few, workers)
    fresh_ms = _median_ms(partial(_run_fresh, [program]) for program in programs[:20])
    yield Measurement("fresh python -I -S", fresh_ms, len(few) / seconds, 1.0)
    for level in levels or tuple(reversed(LEVELS)):
        with ExitStack() as stack:
            settings = SandboxSettings(allow_unsafe=True)
            sandboxes = [stack.enter_context(closing(Sandbox(settings))) for _ in range(workers)]
            if any(sandbox.try_level(level) is not None for sandbox in sandboxes):
                continue
            for sandbox in sandboxes:
                sandbox.run_batch(programs[:8])  # the first programs find cold caches
            latency_ms = _median_ms(partial(sandboxes[0].run, program) for program in programs[:100])
            rate, fresh = _compare(sandboxes, programs)
            yield Measurement(level, latency_ms, rate, rate / fresh)


def table(measurements: Iterable[Measurement]) -> Iterator[str]:
    """Yield the lines of a table, each as soon as its measurement is available."""
    yield f"{'':<20}{'latency ms':>12}{'programs/s':>12}{'x fresh':>9}"
    for entry in measurements:
        line = f"{entry.name:<20}{entry.latency_ms:>12.2f}"
        if entry.programs_per_s:
            line += f"{entry.programs_per_s:>12.1f}{entry.vs_fresh:>9.1f}"
        yield line
