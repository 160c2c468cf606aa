"""Honest programs get in the sandbox the verdicts that plain CPython gives them, test for test.

Where they do not, `honest/known_differences.py` says which tests and why; docs/explanation/sandbox.md has the same classes.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from marl_ray.sandbox import ExecutionReport, Sandbox
from tests.sandbox.honest import PROGRAMS, HonestProgram
from tests.sandbox.honest.known_differences import KNOWN_DIFFERENCES

PLAIN = Path(__file__).with_name("honest") / "cpython_reference.py"


@functools.cache
def plain_verdicts(honest: HonestProgram) -> list[str]:
    """What CPython says, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps(honest.job()))
        done = subprocess.run(
            [sys.executable, str(PLAIN), str(job)],
            capture_output=True,
            env={"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8"},
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))


def sandboxed_verdicts(report: ExecutionReport) -> list[str]:
    named = [f"error:{test.error_type}" if test.status == "error" else test.status for test in report.tests]
    return [str(verdict) for verdict in named]


@pytest.fixture(scope="module")
def reports(sandbox: Sandbox) -> dict[str, ExecutionReport]:
    """All programs one after the other in one sandbox, so that state of one could reach the next."""
    found = sandbox.run_batch([honest.program() for honest in PROGRAMS])
    return {honest.name: report for honest, report in zip(PROGRAMS, found, strict=True)}


@pytest.mark.parametrize("honest", PROGRAMS, ids=lambda honest: honest.name)
def test_verdicts_are_those_of_plain_python(reports: dict[str, ExecutionReport], honest: HonestProgram) -> None:
    if reports[honest.name].isolation == "process":
        pytest.skip("the list of differences is for levels at which guests can read Python's library")
    plain, sandboxed = plain_verdicts(honest), sandboxed_verdicts(reports[honest.name])
    assert len(plain) == len(sandboxed)
    different = {number for number, pair in enumerate(zip(plain, sandboxed, strict=True)) if len(set(pair)) == 2}
    known = {number for programs in KNOWN_DIFFERENCES.values() for number in programs.get(honest.name, ())}
    messages = [(test.source, test.message) for test in reports[honest.name].tests]
    assert different == known, f"plain {plain}, sandboxed {sandboxed}, {messages}"


def test_agreement(reports: dict[str, ExecutionReport], capsys: pytest.CaptureFixture[str]) -> None:
    """At least 95 % of the tests get the same verdict; 93 where guests can open no file at all."""
    same: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for honest in PROGRAMS:
        pairs = zip(plain_verdicts(honest), sandboxed_verdicts(reports[honest.name]), strict=True)
        verdicts = [left == right for left, right in pairs]
        same[honest.group] += sum(verdicts)
        total[honest.group] += len(verdicts)
    with capsys.disabled():
        for group, count in total.items():
            print(f"\n  {group:16} {same[group]:3} of {count:3}", end="")
        print(f"\n  {'all':16} {same.total():3} of {total.total():3} ({100 * same.total() / total.total():.1f} %)")
    wanted = 0.93 if reports[PROGRAMS[0].name].isolation == "process" else 0.95
    assert same.total() >= wanted * total.total()


def test_the_set_is_large_and_the_list_of_differences_short() -> None:
    names = [honest.name for honest in PROGRAMS]
    assert len(set(names)) == len(names) >= 150
    assert {name for programs in KNOWN_DIFFERENCES.values() for name in programs} <= set(names)
