"""Check every code path that needs a GPU, which CI cannot do. Takes about ten minutes.

    python -m benchmarks.gpu_check --out report.md         # needs at least one GPU
    python -m benchmarks.gpu_check --cpu                   # the checks that also work on a CPU

Each check (`benchmarks.device_checks`) runs in its own process for at most `--deadline` seconds. Prints a table; --out
writes a Markdown report with versions and measurements. The exit status is 1 if a check fails. docs/how-to/gpu.md
describes the checks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.device_checks import CHECKS, Machine, Numbers, Skipped
from marl_ray.core.installed_versions import versions

Outcome = Literal["ok", "failed", "skipped"]

MODELS = {True: "bundled:smollm2-135m", False: "bundled:toy-base"}
"""Default model on a GPU (True) and on a CPU (False)."""
LAST_LINES = 25
"""Number of output lines of a failed check in the report."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a check. `output` is the reason for skipping it, or the last lines of a failed check."""

    name: str
    outcome: Outcome
    seconds: float
    numbers: Numbers = field(default_factory=dict)
    output: str = ""

    @property
    def summary(self) -> str:
        if self.outcome == "ok":
            return ", ".join(f"{name} {_show(value)}" for name, value in self.numbers.items())
        return self.output.strip().splitlines()[-1] if self.output.strip() else "no output"


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    gpus = 0 if options.cpu else count_gpus()
    if not gpus and not options.cpu:
        sys.stderr.write("error: no GPU found: --cpu runs the checks that work on a CPU\n")
        return 2
    machine = Machine(gpus, options.model or MODELS[gpus > 0])
    if options.run is not None:
        return run_in_this_process(options.run, machine, Path(options.result))
    results = []
    for name in options.only or CHECKS:
        print(f"{name}: {CHECKS[name][1]} ...", flush=True)
        results.append(result := run_in_subprocess(name, machine, options.cpu, options.deadline))
        print(f"    {result.outcome} after {result.seconds:.0f} s: {result.summary}", flush=True)
    print("\n" + table(results))
    if options.out:
        Path(options.out).write_text(report(results, machine, describe_gpus() if gpus else []))
        print(f"\nreport written to {options.out}")
    return int(any(result.outcome == "failed" for result in results))


def run_in_this_process(name: str, machine: Machine, result: Path) -> int:
    """Run one check and write its result to the file `result`."""
    from marl_ray.cluster.ray_connection import connect, disconnect

    check = CHECKS[name][0]
    try:
        if name != "training":  # this check starts Ray itself
            connect(verbose=False)
        result.write_text(json.dumps({"outcome": "ok", "numbers": check(machine)}))
    except Skipped as reason:
        result.write_text(json.dumps({"outcome": "skipped", "output": str(reason)}))
    finally:
        disconnect()
    return 0


def run_in_subprocess(name: str, machine: Machine, cpu: bool, deadline_s: float) -> Result:
    """Run one check in a new process group, which is killed after `deadline_s` seconds."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder, "answer.json"), Path(folder, "log")
        command = [sys.executable, "-m", "benchmarks.gpu_check", "--run", name, "--result", str(answer)]
        command += ["--model", machine.model, *(["--cpu"] if cpu else [])]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        if cpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        with log.open("w") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
            try:
                status = process.wait(deadline_s)
                late = ""
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status, late = process.wait(), f"\nnot finished after {deadline_s:g} s"
        seconds = time.monotonic() - begun
        if status == 0 and answer.exists():
            found = json.loads(answer.read_text())
            return Result(name, found["outcome"], seconds, found.get("numbers", {}), found.get("output", ""))
        output_tail = "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
        return Result(name, "failed", seconds, output=output_tail + late)


def table(results: list[Result]) -> str:
    """Return an aligned table: check, outcome, seconds and measurements."""
    rows = [("check", "outcome", "s", "numbers")]
    rows += [(r.name, r.outcome, f"{r.seconds:.0f}", r.summary) for r in results]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:<{widths[0]}}  {outcome:<{widths[1]}}  {seconds:>{widths[2]}}  {numbers}"
        for name, outcome, seconds, numbers in rows
    )


def report(results: list[Result], machine: Machine, gpus: list[str]) -> str:
    """Return a Markdown report: versions, devices, the table, and the last output of failed checks."""
    passed = sum(result.outcome == "ok" for result in results)
    failed = [result for result in results if result.outcome == "failed"]
    where = "; ".join(gpus) or "none (CPU only)"
    facts = {"system": platform.platform(), "GPUs": where, "model": machine.model, **versions()}
    lines = [
        "# GPU check",
        "",
        f"{passed} of {len(results)} checks passed, {len(failed)} failed.",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        "",
        "| check | description | outcome | seconds | numbers |",
        "|---|---|---|---|---|",
        *(
            f"| {r.name} | {CHECKS[r.name][1]} | {r.outcome} | {r.seconds:.0f} | {r.summary.replace('|', '/')} |"
            for r in results
        ),
    ]
    for result in failed:
        lines += ["", f"## {result.name}", "", "```", result.output.replace("```", "'''"), "```"]
    return "\n".join(lines) + "\n"


def count_gpus() -> int:
    """Return the number of GPUs. A child process asks torch, so that this process allocates no GPU memory."""
    return int(_ask_torch("print(torch.cuda.device_count())") or 0)


def describe_gpus() -> list[str]:
    """Return a line per GPU: name, memory, compute capability, and torch's version of CUDA."""
    script = (
        "for i in range(torch.cuda.device_count()):\n"
        "    p = torch.cuda.get_device_properties(i)\n"
        "    print(f'{p.name}, {p.total_memory / 2**30:.0f} GiB, {p.major}.{p.minor}, CUDA {torch.version.cuda}')"
    )
    return _ask_torch(script).splitlines()


def _ask_torch(script: str) -> str:
    command = [sys.executable, "-c", f"import torch\n{script}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout.strip()


def _show(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="run the checks that work on a CPU, without using a GPU")
    models = f"{MODELS[True]}, on a CPU {MODELS[False]}"
    parser.add_argument("--model", help=f"folder, hub id or bundled model (default {models})")
    parser.add_argument(
        "--only", nargs="+", choices=CHECKS, metavar="CHECK", help=f"run only these checks: {', '.join(CHECKS)}"
    )
    parser.add_argument("--deadline", type=float, default=240.0, help="time limit per check in seconds (default 240)")
    parser.add_argument("--out", help="write a Markdown report to this file")
    parser.add_argument("--run", choices=CHECKS, help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
