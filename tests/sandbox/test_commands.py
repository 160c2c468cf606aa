"""The commands `sandbox run`, `doctor` and `bench`: JSON programs as input, JSON reports as output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
KEYS = {"isolation", "trusted", "syntax_error", "tests", "passed", "total", "stdout", "cpu_s", "wall_s"}
TEST_KEYS = {"trusted", "status", "error_type", "message", "line", "source"}
GOOD = {
    "program": "def f(x):\n    print('hello')\n    return x + 1\n",
    "tests": ["assert f(1) == 2"],
    "entry_point": "f",
}


def run_command(*arguments: str, stdin: str = "", module: str = "marl_ray.sandbox") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *(["sandbox"] if module == "marl_ray" else []), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)


def run_programs(value: Any, *arguments: str, module: str = "marl_ray.sandbox") -> Any:
    done = run_command("run", *arguments, stdin=json.dumps(value), module=module)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", ["marl_ray.sandbox", "marl_ray"])
def test_run_prints_the_report_of_one_program(module: str) -> None:
    report = run_programs(GOOD, module=module)
    assert set(report) == KEYS
    assert [set(test) for test in report["tests"]] == [TEST_KEYS]
    assert (report["passed"], report["total"], report["trusted"], report["syntax_error"]) == (1, 1, True, None)
    assert report["stdout"] == "hello\n"
    assert report["isolation"] in ("bwrap", "process+landlock", "process")
    assert report["wall_s"] > 0


def test_reports_are_in_the_order_of_the_programs() -> None:
    programs = [
        {**GOOD, "tests": ["assert f(1) == 3"]},
        {"program": "def f(x)\n", "tests": ["assert f(1) == 1"], "entry_point": "f"},
        GOOD,
        {"program": "print(int(input()) * 2)", "tests": [{"stdin": "4\n", "stdout": "8"}], "entry_point": ""},
        {"program": "import sys\ndef f(): return sys.stdin.read()", "tests": ["assert f() == 'in'"], "entry_point": "f"}
        | {"stdin": "in"},
        {"program": "def f():\n    while True: pass", "tests": ["assert f() == 1"], "entry_point": "f"}
        | {"limits": {"test_cpu_s": 0.2}},
    ]
    reports = run_programs(programs)
    statuses = [[test["status"] for test in report["tests"]] for report in reports]
    assert statuses == [["fail"], ["error"], ["pass"], ["pass"], ["pass"], ["timeout"]]
    assert reports[1]["syntax_error"]["line"] == 1
    assert "got 2" in reports[0]["tests"][0]["message"]
    assert run_programs([]) == []


def test_prompt_helpers_are_not_taken_from_the_program() -> None:
    prompt = "def double(x):\n    return 2 * x\n\ndef f(x):\n    '''Half.'''\n"
    program = {"program": "def double(x): return 8\ndef f(x): return 0\n", "tests": ["assert double(f(8)) == 8"]}
    assert run_programs({**program, "entry_point": "f", "prompt": prompt})["passed"] == 0


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "standard input"),
        ("[1]", "object"),
        ("{}", "program"),
        ('{"program": "x", "tests": [], "entry": "f"}', "entry"),
        ('{"program": "x", "tests": ["assert f("], "entry_point": "f"}', "test"),
        ('{"program": "x", "tests": ["assert f()"], "entry_point": "f", "limits": {"cpu": 1}}', "cpu"),
        ('{"program": "x", "tests": ["assert f()"], "entry_point": "f", "limits": {"test_cpu_s": -1}}', "test_cpu_s"),
    ],
)
def test_invalid_input_exits_with_2_and_one_line(text: str, hint: str) -> None:
    done = run_command("run", stdin=text)
    assert done.returncode == 2
    assert done.stdout == ""
    assert hint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_run_accepts_an_isolation_level() -> None:
    assert run_programs(GOOD, "--isolation", "process")["isolation"].startswith("process")
    refused = run_command("run", "--isolation", "none", stdin=json.dumps(GOOD))
    assert refused.returncode == 2
    assert "allow_unsafe" in refused.stderr
    unsafe = run_programs(GOOD, "--isolation", "none", "--allow-unsafe")
    assert (unsafe["isolation"], unsafe["trusted"], unsafe["passed"]) == ("none", False, 1)


def test_programs_do_not_inherit_environment_variables() -> None:
    program = {"program": "import os\ndef f(): return sorted(os.environ)\n", "tests": ["assert 'PATH' in f()"]}
    report = run_programs({**program, "entry_point": "f"})
    assert report["passed"] == 0
    assert "got" in report["tests"][0]["message"] or "hold" in report["tests"][0]["message"]


def test_doctor_lists_every_isolation_primitive() -> None:
    done = run_command("doctor")
    assert done.returncode == 0, done.stderr
    text = done.stdout.lower()
    for word in ("seccomp", "landlock", "user namespaces", "bubblewrap", "process"):
        assert word in text, done.stdout


def test_bench_includes_a_fresh_interpreter() -> None:
    done = run_command("bench", "--programs", "16", "--workers", "1", "--level", "process", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert {"bare fork", "fresh python -I -S", "process"} <= rows.keys()
    assert rows["process"]["programs_per_s"] > rows["fresh python -I -S"]["programs_per_s"] > 0
