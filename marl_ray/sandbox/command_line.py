"""`marl-ray sandbox run | doctor | bench`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from marl_ray.sandbox import bench, doctor
from marl_ray.sandbox.host.isolation_settings import SandboxSettings, SandboxUnavailable
from marl_ray.sandbox.host.program import Program
from marl_ray.sandbox.host.sandbox import Sandbox
from marl_ray.sandbox.host.spawn import LEVELS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="marl-ray sandbox", description="Run untrusted Python programs.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="run programs given as JSON on standard input",
        description="Reads {program, tests, entry_point, prompt?, form?, stdin?, limits?, visible?}, or a list of such "
        "objects, as JSON on standard input; writes the report, or the list of reports in order, as JSON. Statements "
        "of the tests without an assert run with the next one that has one; after the last assert nothing is run.",
    )
    run.add_argument("--isolation", choices=["auto", "bwrap", "process", "none"], default="auto")
    run.add_argument("--require", choices=LEVELS, help="refuse below this level")
    run.add_argument("--allow-unsafe", action="store_true", help="accept running programs unprotected")
    run.add_argument("--package", action="append", default=[], help="an installed package to allow (repeatable)")
    run.add_argument("--scratch-mb", type=int, default=0, metavar="N", help="MiB that a program may write to files")
    commands.add_parser("doctor", help="what this machine allows, and what would raise the level")
    measure = commands.add_parser("bench", help="programs/s and latency per level, next to a fresh interpreter")
    measure.add_argument("--programs", type=int, default=400)
    measure.add_argument("--workers", type=int, help="sandboxes side by side (default: one per core)")
    measure.add_argument("--level", choices=LEVELS, action="append", default=[], help="only this level (repeatable)")
    measure.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    try:
        data = json.load(sys.stdin)
        programs = [Program.from_dict(entry) for entry in (data if isinstance(data, list) else [data])]
    except ValueError as error:
        return _complain(f"standard input: {error}")
    try:
        settings = SandboxSettings(
            arguments.isolation,
            arguments.require,
            arguments.allow_unsafe,
            packages=tuple(arguments.package),
            scratch_mb=arguments.scratch_mb,
        )
        with Sandbox(settings) as sandbox:
            reports: list[Any] = [report.to_dict() for report in sandbox.run_batch(programs)]
    except (SandboxUnavailable, ValueError) as error:
        return _complain(str(error))
    json.dump(reports if isinstance(data, list) else reports[0], sys.stdout)
    sys.stdout.write("\n")
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    if arguments.programs < 16 or (arguments.workers or 1) < 1:
        return _complain("bench: at least 16 programs and one worker")
    measurements = bench.measure(arguments.programs, arguments.workers, arguments.level)
    if arguments.json:
        json.dump(bench.as_dicts(measurements), sys.stdout, indent=1)
        sys.stdout.write("\n")
        return 0
    for line in bench.table(measurements):
        print(line, flush=True)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    for line in doctor.report():
        print(line, flush=True)
    return 0


def _complain(message: str) -> int:
    print(f"marl-ray sandbox: {message}", file=sys.stderr)
    return 2


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, also when nobody reads on (`| head`), or 2 when the input is unusable or no acceptable
    isolation can be had."""
    arguments = _parser().parse_args(argv)
    commands = {"run": _run, "bench": _bench, "doctor": _doctor}
    try:
        status = commands[arguments.command](arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        return 0
    return status
