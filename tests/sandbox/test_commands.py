"""The command line: programs in as JSON, reports out as JSON."""

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


def sandbox(*arguments: str, stdin: str = "", module: str = "marl_ray.sandbox") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *(["sandbox"] if module == "marl_ray" else []), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)


def run(value: Any, *arguments: str, module: str = "marl_ray.sandbox") -> Any:
    done = sandbox("run", *arguments, stdin=json.dumps(value), module=module)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", ["marl_ray.sandbox", "marl_ray"])
def test_one_program(module: str) -> None:
    report = run(GOOD, module=module)
    assert set(report) == KEYS
    assert [set(test) for test in report["tests"]] == [TEST_KEYS]
    assert (report["passed"], report["total"], report["trusted"], report["syntax_error"]) == (1, 1, True, None)
    assert report["stdout"] == "hello\n"
    assert report["isolation"] in ("bwrap", "process+landlock", "process")
    assert report["wall_s"] > 0


def test_a_list_keeps_its_order() -> None:
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
    reports = run(programs)
    statuses = [[test["status"] for test in report["tests"]] for report in reports]
    assert statuses == [["fail"], ["error"], ["pass"], ["pass"], ["pass"], ["timeout"]]
    assert reports[1]["syntax_error"]["line"] == 1
    assert "got 2" in reports[0]["tests"][0]["message"]
    assert run([]) == []


def test_helpers_of_the_prompt() -> None:
    prompt = "def double(x):\n    return 2 * x\n\ndef f(x):\n    '''Half.'''\n"
    program = {"program": "def double(x): return 8\ndef f(x): return 0\n", "tests": ["assert double(f(8)) == 8"]}
    assert run({**program, "entry_point": "f", "prompt": prompt})["passed"] == 0


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
def test_unusable_input_is_named_in_one_line(text: str, hint: str) -> None:
    done = sandbox("run", stdin=text)
    assert done.returncode == 2
    assert done.stdout == ""
    assert hint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_levels_can_be_asked_for() -> None:
    assert run(GOOD, "--isolation", "process")["isolation"].startswith("process")
    refused = sandbox("run", "--isolation", "none", stdin=json.dumps(GOOD))
    assert refused.returncode == 2
    assert "allow_unsafe" in refused.stderr
    unsafe = run(GOOD, "--isolation", "none", "--allow-unsafe")
    assert (unsafe["isolation"], unsafe["trusted"], unsafe["passed"]) == ("none", False, 1)


def test_the_environment_is_not_handed_on() -> None:
    program = {"program": "import os\ndef f(): return sorted(os.environ)\n", "tests": ["assert 'PATH' in f()"]}
    report = run({**program, "entry_point": "f"})
    assert report["passed"] == 0
    assert "got" in report["tests"][0]["message"] or "hold" in report["tests"][0]["message"]


def test_doctor_says_what_there_is_and_what_is_missing() -> None:
    done = sandbox("doctor")
    assert done.returncode == 0, done.stderr
    text = done.stdout.lower()
    for word in ("seccomp", "landlock", "user namespaces", "bubblewrap", "process"):
        assert word in text, done.stdout


def test_bench_compares_with_a_fresh_interpreter() -> None:
    done = sandbox("bench", "--programs", "16", "--workers", "1", "--level", "process", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert {"bare fork", "fresh python -I -S", "process"} <= rows.keys()
    assert rows["process"]["programs_per_s"] > rows["fresh python -I -S"]["programs_per_s"] > 0
