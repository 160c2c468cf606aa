"""Every path that needs a GPU, tried on this machine's, in some ten minutes: what CI cannot do.

    python -m benchmarks.gpu_check --out report.md         # on any machine with one GPU or more
    python -m benchmarks.gpu_check --cpu                   # what of it a CPU can do

Each check (`benchmarks.device_checks`) is a process of its own that has `--deadline` seconds. At the end there is a
table, and with --out a report in Markdown, with versions and numbers, for an issue. The exit status is 1 where a check
has failed. docs/how-to/gpu.md says what is checked.
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
"""On a GPU, and on a CPU."""
LAST_LINES = 25
"""Of a check that failed, for the report."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a check: its numbers, why it was skipped, or the last lines of what it said."""

    name: str
    outcome: Outcome
    seconds: float
    numbers: Numbers = field(default_factory=dict)
    said: str = ""

    @property
    def summary(self) -> str:
        if self.outcome == "ok":
            return ", ".join(f"{name} {_show(value)}" for name, value in self.numbers.items())
        return self.said.strip().splitlines()[-1] if self.said.strip() else "nothing was said"


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    gpus = 0 if options.cpu else count_gpus()
    if not gpus and not options.cpu:
        sys.stderr.write("error: there is no GPU here: --cpu tries what a CPU can do\n")
        return 2
    machine = Machine(gpus, options.model or MODELS[gpus > 0])
    if options.run is not None:
        return run_here(options.run, machine, Path(options.result))
    results = []
    for name in options.only or CHECKS:
        print(f"{name}: {CHECKS[name][1]} ...", flush=True)
        results.append(result := run_apart(name, machine, options.cpu, options.deadline))
        print(f"    {result.outcome} after {result.seconds:.0f} s: {result.summary}", flush=True)
    print("\n" + table(results))
    if options.out:
        Path(options.out).write_text(report(results, machine, describe_gpus() if gpus else []))
        print(f"\nthe report is in {options.out}")
    return int(any(result.outcome == "failed" for result in results))


def run_here(name: str, machine: Machine, result: Path) -> int:
    """One check, in this process. What it found goes into the file `result`."""
    from marl_ray.cluster.ray_connection import connect, disconnect

    check = CHECKS[name][0]
    try:
        if name != "training":  # which starts its own
            connect(verbose=False)
        result.write_text(json.dumps({"outcome": "ok", "numbers": check(machine)}))
    except Skipped as why:
        result.write_text(json.dumps({"outcome": "skipped", "said": str(why)}))
    finally:
        disconnect()
    return 0


def run_apart(name: str, machine: Machine, cpu: bool, deadline_s: float) -> Result:
    """One check, in a process group of its own, which is ended with all that it has started when its time is up."""
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
                status, late = process.wait(), f"\nit was not done after {deadline_s:g} s"
        seconds = time.monotonic() - begun
        if status == 0 and answer.exists():
            found = json.loads(answer.read_text())
            return Result(name, found["outcome"], seconds, found.get("numbers", {}), found.get("said", ""))
        said = "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
        return Result(name, "failed", seconds, said=said + late)


def table(results: list[Result]) -> str:
    """Check, outcome, seconds and numbers, aligned."""
    rows = [("check", "outcome", "s", "numbers")]
    rows += [(r.name, r.outcome, f"{r.seconds:.0f}", r.summary) for r in results]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:<{widths[0]}}  {outcome:<{widths[1]}}  {seconds:>{widths[2]}}  {numbers}"
        for name, outcome, seconds, numbers in rows
    )


def report(results: list[Result], machine: Machine, gpus: list[str]) -> str:
    """In Markdown: what ran where, the table, and what failed checks said last."""
    passed = sum(result.outcome == "ok" for result in results)
    failed = [result for result in results if result.outcome == "failed"]
    where = "; ".join(gpus) or "no GPU, on the CPU alone"
    facts = {"system": platform.platform(), "GPUs": where, "model": machine.model, **versions()}
    lines = [
        "# GPU check",
        "",
        f"{passed} of {len(results)} checks passed, {len(failed)} failed.",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        "",
        "| check | what | outcome | seconds | numbers |",
        "|---|---|---|---|---|",
        *(
            f"| {r.name} | {CHECKS[r.name][1]} | {r.outcome} | {r.seconds:.0f} | {r.summary.replace('|', '/')} |"
            for r in results
        ),
    ]
    for result in failed:
        lines += ["", f"## {result.name}", "", "```", result.said.replace("```", "'''"), "```"]
    return "\n".join(lines) + "\n"


def count_gpus() -> int:
    """Asked in another process: this one never touches a GPU, so that it holds nothing of one."""
    return int(_ask_torch("print(torch.cuda.device_count())") or 0)


def describe_gpus() -> list[str]:
    """Name, memory and compute capability of each, and the CUDA of torch."""
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
    parser.add_argument("--cpu", action="store_true", help="what a CPU can do, even where there is a GPU")
    models = f"{MODELS[True]}, on a CPU {MODELS[False]}"
    parser.add_argument("--model", help=f"a folder, hub id or bundled model (default {models})")
    parser.add_argument("--only", nargs="+", choices=CHECKS, metavar="CHECK", help=f"of {', '.join(CHECKS)}")
    parser.add_argument("--deadline", type=float, default=240.0, help="seconds that each check has")
    parser.add_argument("--out", help="write a report in Markdown to this file")
    parser.add_argument("--run", choices=CHECKS, help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
