"""`marl-ray doctor`: describe this machine, and check the code paths that depend on its devices."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_ray.cli.parser import Parser
from marl_ray.core.errors import UserError
from marl_ray.core.stop_signals import StopSignals
from marl_ray.core.text import did_you_mean, pluralize

MODELS = {True: "bundled:smollm2-135m", False: "bundled:toy-base"}
"""Default model on a GPU (True) and on a CPU (False)."""


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="marl-ray doctor",
        description="Describe this machine: versions, driver, GPUs and attention kernels. With --gpu, check every\n"
        "code path that needs a GPU with real engines and learners, each check in a process of its own. Takes about a\n"
        "minute per check, and fails if a check fails. `marl-ray sandbox doctor` checks the sandbox.",
        epilog="example:\n  marl-ray doctor --gpu --out report.md",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--gpu",
        action="store_true",
        help="run all checks on the GPUs of this machine",
    )
    where.add_argument(
        "--cpu",
        action="store_true",
        help="run the checks that work on a CPU, without using a GPU",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help=f"model (default {MODELS[True]}, on a CPU {MODELS[False]})",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="CHECK",
        default=(),
        help="run only these checks",
    )
    parser.add_argument(
        "--deadline",
        type=float,
        default=240.0,
        metavar="S",
        help="seconds per check (default 240)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write a Markdown report to this file",
    )
    return parser.run(_doctor, argv)


def _doctor(options: argparse.Namespace) -> None:
    from marl_ray.plugins.gpu_check.check_runner import report, run_checks, table
    from marl_ray.plugins.gpu_check.device_checks import CHECKS
    from marl_ray.plugins.gpu_check.device_facts import count_gpus, machine_facts
    from marl_ray.plugins.gpu_check.exercise import Machine

    for name in options.only:
        if name not in CHECKS:
            raise UserError(f"--only {name} is not a check{did_you_mean(name, CHECKS)}; there are {', '.join(CHECKS)}")
    facts = machine_facts()
    for name, value in facts.items():
        print(f"{name}: {value}")
    if not options.gpu and not options.cpu:
        return
    gpus = 0
    where = "the CPU"
    if options.gpu:
        gpus = count_gpus()
        if not gpus:
            raise UserError("no GPU found: --cpu runs the checks that work on a CPU")
        where = pluralize(gpus, "GPU")
    machine = Machine(gpus, options.model or MODELS[gpus > 0])
    names = list(options.only or CHECKS)
    print(f"\n{pluralize(len(names), 'check')} with {machine.model} on {where}")
    with StopSignals():
        results = run_checks(names, machine, options.deadline, lambda line: print(line, flush=True))
    print("\n" + table(results))
    if options.out:
        facts["model"] = machine.model
        options.out.write_text(report(results, facts), encoding="utf-8")
        print(f"\nreport written to {options.out}")
    failed = [result.name for result in results if result.outcome == "failed"]
    if failed:
        raise UserError(f"{pluralize(len(failed), 'check')} failed: {', '.join(failed)}")
