"""Reference verdicts of plain CPython: a script that runs in a process of its own.

Usage: `cpython_reference.py JOB`, with the path of a JSON file (see `HonestProgram.job`) in a writable folder. The
script prints a JSON list of verdicts: "pass", "fail", "skipped" or "error:" and the exception's name. Asserts and
unittest classes run in the module's own namespace, as after `from solution import *`; a script runs as `python
solution.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import traceback
import unittest
from pathlib import Path
from typing import Any


def _error(error: BaseException) -> str:
    """Return "fail" for a failed assertion of the test, and "error:NAME" for any other exception."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, AssertionError) and not frames[-1].filename.endswith("solution.py"):
        return "fail"
    return f"error:{type(error).__name__}"


def _asserts(tests: list[str]) -> list[str]:
    try:
        names = vars(importlib.import_module("solution"))
    except BaseException as error:
        return [_error(error)] * len(tests)
    verdicts = []
    for test in tests:
        try:
            exec(compile(test, "<test>", "exec", dont_inherit=True), names)
            verdicts.append("pass")
        except BaseException as error:
            verdicts.append(_error(error))
    return verdicts


def _units(suite: str, units: list[list[str]]) -> list[str]:
    names = vars(importlib.import_module("solution"))
    exec(compile(suite, "<tests>", "exec", dont_inherit=True), names)
    verdicts = []
    for class_name, method in units:
        result = unittest.TestResult()
        names[class_name](method).run(result)
        if result.errors:
            last = result.errors[0][1].strip().splitlines()[-1]
            verdicts.append("error:" + last.partition(":")[0].rpartition(".")[2])
        else:
            verdicts.append("fail" if not result.wasSuccessful() else "skipped" if result.skipped else "pass")
    return verdicts


def _script(stdin: str, stdout: str) -> str:
    done = subprocess.run(
        [sys.executable, "solution.py"], input=stdin, capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        name = last.partition(":")[0].rpartition(".")[2]
        return f"error:{name}" if name.endswith(("Error", "Exception", "Interrupt")) else "error:SystemExit"
    return "pass" if _lines(done.stdout) == _lines(stdout) else "fail"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def main(job: Path) -> None:
    data: dict[str, Any] = json.loads(job.read_text())
    os.chdir(job.parent)
    Path("solution.py").write_text(data["program"], encoding="utf-8")
    sys.path.insert(0, str(job.parent))
    sys.argv[:] = ["solution.py"]
    with contextlib.redirect_stdout(io.StringIO()):
        if data["form"] == "stdio":
            verdicts = [_script(*pair) for pair in data["scripts"]]
        elif data["form"] == "unittest":
            verdicts = _units(data["suite"], data["units"])
        else:
            verdicts = _asserts(data["tests"])
    assert sys.__stdout__ is not None
    print(json.dumps(verdicts), file=sys.__stdout__)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
