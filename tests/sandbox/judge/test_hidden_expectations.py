"""Nothing that a guest can see depends on the outputs that its tests expect."""

from __future__ import annotations

import json

from marl_ray.sandbox import Limits, Program, Sandbox, StdioCase, stdio_tests

LOOK = """
import os, resource, sys

def show(name, value):
    text = repr(value)
    if " at 0x" not in text:
        print(name, text)

for name in sorted(vars(resource)):
    if name.startswith("RLIMIT"):
        show(name, resource.getrlimit(getattr(resource, name)))
for stream in (sys.stdin, sys.stdout, sys.stderr):
    for layer in (stream, stream.buffer, stream.buffer.raw):
        for name in dir(layer):
            if not name.startswith("__") and not callable(getattr(layer, name)):
                show(name, getattr(layer, name))
for descriptor in range(64):
    try:
        status = os.fstat(descriptor)
    except OSError:
        continue
    show(f"descriptor {descriptor}", (status.st_mode, status.st_size if descriptor != 1 else None))
frame = sys._getframe()
while frame is not None:
    numbers = {name: value for name, value in frame.f_locals.items() if type(value) in (int, float, tuple)}
    show(frame.f_code.co_name, numbers)
    frame = frame.f_back
show("rest", (sys.argv, dict(os.environ), sys.getrecursionlimit(), sys.flags))
"""
GUESSES = """
import resource, sys
size = max(resource.getrlimit(resource.RLIMIT_FSIZE)[0] - 8192, sys.stdout.buffer.raw.remaining[0])
print("YES" if size % 65536 == 2 * len("YES") else "NO")
"""


def test_a_script_sees_the_same_whatever_is_expected(sandbox: Sandbox) -> None:
    seen = []
    for expected in ("NO", "YES", "x" * 100_000):
        report = sandbox.run(Program(LOOK, stdio_tests([StdioCase("1\n", expected)]), ""))
        assert [test.status for test in report.tests] == ["fail"]
        seen.append(report.stdout)
    assert "RLIMIT_FSIZE" in seen[0]
    assert "remaining" in seen[0]
    assert seen[0] == seen[1] == seen[2]


def test_the_length_of_the_answer_cannot_be_guessed(sandbox: Sandbox) -> None:
    for expected in ("YES", "NO"):
        report = sandbox.run(Program(GUESSES, stdio_tests([StdioCase("1\n", expected)]), ""))
        assert report.stdout == "NO\n"


def test_an_output_far_longer_than_the_limit_can_be_expected(sandbox: Sandbox) -> None:
    tests = stdio_tests([StdioCase("300000\n", "a" * 300_000), StdioCase("3\n", "aaa")])
    source = "print('a' * int(input()))\n"
    report = sandbox.run(Program(source, tests, "", limits=Limits(max_output_bytes=1000)))
    assert report.passed == 2
    assert len(report.stdout) == 1000


def test_a_flood_of_output_ends_at_a_share_of_the_memory(sandbox: Sandbox) -> None:
    source = """
import os, sys
for _ in range(300):
    print("x" * 100_000)
sys.stdout.flush()
os._exit(os.fstat(1).st_size >> 20)
"""
    tests = (json.dumps({"stdin": "", "stdout": "6"}),)
    for memory_mb, kept_mb in ((64, 8), (128, 16), (512, 28)):
        limits = Limits(memory_mb=memory_mb, max_output_bytes=1000)
        report = sandbox.run(Program(source, tests, "", limits=limits))
        assert [test.message for test in report.tests] == [f"the process ended with exit status {kept_mb}"]
        assert len(report.stdout) <= 1000
