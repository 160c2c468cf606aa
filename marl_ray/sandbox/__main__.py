"""Commands `marl-ray sandbox run | doctor | bench`, also `python -m marl_ray.sandbox`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from marl_ray.sandbox import bench, doctor
from marl_ray.sandbox.host.isolation_levels import LEVELS, SandboxSettings, SandboxUnavailable
from marl_ray.sandbox.host.program import Program
from marl_ray.sandbox.host.sandbox import Sandbox


def sandbox_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="marl-ray sandbox", description="Run untrusted Python programs.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="run programs given as JSON on standard input",
        description="Read {program, tests, entry_point, prompt?, form?, stdin?, limits?, visible?}, or a list of such "
        "objects, as JSON from standard input; write the report, or the list of reports in order, as JSON. Statements "
        "of the tests without an assert run with the next assert; statements after the last assert do not run.",
    )
    run.add_argument("--isolation", choices=["auto", "bwrap", "process", "none"], default="auto")
    run.add_argument("--require", choices=LEVELS, help="refuse to start below this level")
    run.add_argument("--allow-unsafe", action="store_true", help="permit running programs unprotected")
    run.add_argument("--package", action="append", default=[], help="package that programs may import (repeatable)")
    run.add_argument("--scratch-mb", type=int, default=0, metavar="N", help="MiB of files that a program may write")
    commands.add_parser("doctor", help="report the available isolation levels and how to raise the level")
    measure = commands.add_parser("bench", help="measure programs/s and latency per level and of a fresh interpreter")
    measure.add_argument("--programs", type=int, default=400)
    measure.add_argument("--workers", type=int, help="concurrent sandboxes (default: one per core)")
    measure.add_argument("--level", choices=LEVELS, action="append", default=[], help="only this level (repeatable)")
    measure.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    try:
        data = json.load(sys.stdin)
        entries = data if isinstance(data, list) else [data]
        programs = [Program.from_dict(entry) for entry in entries]
    except ValueError as error:
        return _fail(f"standard input: {error}")
    packages = tuple(arguments.package)
    try:
        settings = SandboxSettings(
            arguments.isolation,
            arguments.require,
            arguments.allow_unsafe,
            packages=packages,
            scratch_mb=arguments.scratch_mb,
        )
        with Sandbox(settings) as sandbox:
            reports: list[Any] = [report.to_dict() for report in sandbox.run_batch(programs)]
    except (SandboxUnavailable, ValueError) as error:
        return _fail(str(error))
    json.dump(reports if isinstance(data, list) else reports[0], sys.stdout)
    sys.stdout.write("\n")
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    if arguments.programs < 16 or (arguments.workers or 1) < 1:
        return _fail("bench: at least 16 programs and one worker")
    measurements = bench.measure(arguments.programs, arguments.workers, arguments.level)
    if arguments.json:
        json.dump([entry._asdict() for entry in measurements], sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    return _print(bench.table(measurements))


def _print(lines: Iterable[str]) -> int:
    for line in lines:
        print(line, flush=True)
    return 0


def _fail(message: str) -> int:
    print(f"marl-ray sandbox: {message}", file=sys.stderr)
    return 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status.

    0: success, also if the reader of standard output goes away (`| head`). 2: unusable input, or no acceptable
    isolation.
    """
    commands = {"run": _run, "bench": _bench, "doctor": lambda _: _print(doctor.report())}
    try:
        arguments = sandbox_parser().parse_args(argv)  # prints a help text and raises SystemExit
        return commands[arguments.command](arguments)
    except BrokenPipeError:
        return 0
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at exit


if __name__ == "__main__":
    sys.exit(main())
