"""Run device checks, each in a process of its own, and report the results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from marl_ray.plugins.gpu_check.device_checks import CHECKS
from marl_ray.plugins.gpu_check.device_facts import used_gpu_memory
from marl_ray.plugins.gpu_check.exercise import Machine, Numbers, Skipped

CheckOutcome = Literal["ok", "failed", "skipped"]

MEMORY_WAIT_S = 60.0
MEMORY_SLACK_MB = 200.0
"""GPU memory in MB that may remain in use between two checks."""
LAST_LINES = 25
"""Number of output lines of a failed check in the report."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a check. `output` is the reason for skipping it, or the last lines of a failed check."""

    name: str
    outcome: CheckOutcome
    seconds: float
    numbers: Numbers = field(default_factory=dict)
    output: str = ""

    @property
    def summary(self) -> str:
        if self.outcome == "ok":
            parts = []
            for name, value in self.numbers.items():
                parts.append(f"{name} {_show(value)}")
            return ", ".join(parts)
        output = self.output.strip()
        if not output:
            return "no output"
        return output.splitlines()[-1]


def run_checks(names: Sequence[str], machine: Machine, deadline_s: float, show: Callable[[str], None]) -> list[Result]:
    """Run checks one after another, each for at most `deadline_s` seconds. `show` receives lines of progress."""
    results = []
    used = used_gpu_memory()
    for name in names:
        show(f"{name}: {CHECKS[name][1]} ...")
        result = run_in_subprocess(name, machine, deadline_s)
        results.append(result)
        show(f"    {result.outcome} after {result.seconds:.0f} s: {result.summary}")
        if not machine.gpus:
            continue
        left = wait_for_memory(used)
        if left:
            show(f"    {left:,.0f} MB of GPU memory are still in use {MEMORY_WAIT_S:g} s after the check")
    return results


def run_in_this_process(name: str, machine: Machine, result: Path) -> None:
    """Run one check and write its result to the file `result`."""
    from marl_ray.cluster.ray_connection import connect, disconnect

    check, _ = CHECKS[name]
    found: dict[str, Any]
    try:
        if name not in ("training", "options"):  # these checks start Ray themselves
            connect(verbose=False)
        found = {"outcome": "ok", "numbers": check(machine)}
    except Skipped as reason:
        found = {"outcome": "skipped", "output": str(reason)}
    finally:
        disconnect()
    result.write_text(json.dumps(found), encoding="utf-8")


def run_in_subprocess(name: str, machine: Machine, deadline_s: float) -> Result:
    """Run one check in a new process group, which is killed after `deadline_s` seconds."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        log = Path(folder, "log")
        command = [
            sys.executable,
            "-m",
            "marl_ray.plugins.gpu_check.check_runner",
            name,
            str(machine.gpus),
            machine.model,
            str(answer),
        ]
        # A check starts Ray anew, and joins no cluster that this process belongs to.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        if not machine.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            late = ""
            try:
                process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                late = f"\nnot finished after {deadline_s:g} s"
            finally:  # also after Ctrl-C
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                status = process.wait()
        seconds = time.monotonic() - begun
        if status == 0 and answer.exists():
            found = json.loads(answer.read_text(encoding="utf-8"))
            return Result(name, seconds=seconds, **found)
        lines = log.read_text(errors="replace", encoding="utf-8").splitlines()
        last_lines = "\n".join(lines[-LAST_LINES:])
        return Result(name, "failed", seconds, output=last_lines + late)


def table(results: list[Result]) -> str:
    """Return an aligned table: check, outcome, seconds and measurements."""
    rows = [("check", "outcome", "s", "numbers")]
    for result in results:
        rows.append((result.name, result.outcome, f"{result.seconds:.0f}", result.summary))
    name_width, outcome_width, seconds_width, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = []
    for name, outcome, seconds, numbers in rows:
        lines.append(f"{name:<{name_width}}  {outcome:<{outcome_width}}  {seconds:>{seconds_width}}  {numbers}")
    return "\n".join(lines)


def report(results: list[Result], facts: Mapping[str, str]) -> str:
    """Return a Markdown report: facts of the machine, the table, and the last output of failed checks."""
    passed = sum(result.outcome == "ok" for result in results)
    failed = [result for result in results if result.outcome == "failed"]
    lines = [
        "# GPU check",
        "",
        f"{passed} of {len(results)} checks passed, {len(failed)} failed.",
        "",
    ]
    for name, value in facts.items():
        lines.append(f"- {name}: {value}")
    lines += [
        "",
        "| check | description | outcome | seconds | numbers |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        _, description = CHECKS[result.name]
        summary = result.summary.replace("|", "/")
        lines.append(f"| {result.name} | {description} | {result.outcome} | {result.seconds:.0f} | {summary} |")
    for result in failed:
        output = result.output.replace("```", "'''")
        lines += ["", f"## {result.name}", "", "```", output, "```"]
    return "\n".join(lines) + "\n"


def wait_for_memory(used_before: float) -> float:
    """Wait until processes of a check have released their GPU memory. Return the memory in use beyond `used_before`,
    in MB; 0 if it is released within MEMORY_WAIT_S."""
    end = time.monotonic() + MEMORY_WAIT_S
    while True:
        left = used_gpu_memory() - used_before
        if left <= MEMORY_SLACK_MB:
            return 0.0
        if time.monotonic() > end:
            return left
        time.sleep(0.5)


def _show(value: float | str) -> str:
    if isinstance(value, str):
        return value
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


if __name__ == "__main__":
    name, gpus, model, result = sys.argv[1:]
    run_in_this_process(name, Machine(int(gpus), model), Path(result))
