"""Levels are found by trying, get worse step by step as a kernel refuses more, and never pretend."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from tests.sandbox.attacks.level_suite import Host

GOOD = {"program": "def f(x):\n    return x + 1\n", "tests": ["assert f(1) == 2"], "entry_point": "f"}


def hello(**options: Any) -> dict[str, Any]:
    """What a host says when it starts; a host that starts must also run a good program and end cleanly."""
    host = Host(options)
    try:
        if "unavailable" not in host.hello:
            report = host.run([GOOD])["reports"][0]
            assert report["passed"] == 1
            assert report["isolation"] == host.hello["level"]
            host.hello["trusted"] = report["trusted"]
            assert host.close()["processes"] == 0
        return host.hello
    finally:
        host.process.kill()
        host.process.wait()


def test_auto_takes_the_best_level() -> None:
    best = hello(isolation="auto")["level"]
    expected = "bwrap" if shutil.which("bwrap") and "level" in hello(isolation="bwrap") else None
    assert best == expected or (expected is None and best in ("process+landlock", "process"))


def test_auto_degrades_with_what_the_kernel_refuses() -> None:
    first = hello(isolation="auto", refuse=["namespaces"])
    if first.get("level") != "process+landlock":
        pytest.skip(f"no Landlock on this kernel: {first}")
    second = hello(isolation="auto", refuse=["namespaces", "landlock"])
    assert second["level"] == "process"
    third = hello(isolation="auto", refuse=["namespaces", "landlock", "seccomp"])
    assert "seccomp" in third["unavailable"]
    for found, missing in ((first, "bwrap"), (second, "landlock")):
        assert missing in found["describe"].lower(), found
        assert "\n" not in found["describe"].strip()


def test_without_seccomp_no_level_is_offered() -> None:
    for isolation in ("auto", "bwrap", "process"):
        assert "unavailable" in hello(isolation=isolation, refuse=["seccomp"]), isolation


def test_require_refuses_to_degrade() -> None:
    refused = hello(isolation="auto", require="bwrap", refuse=["namespaces"])
    assert "bwrap" in refused["unavailable"]
    kept = hello(isolation="auto", require="process", refuse=["namespaces"])
    assert kept["level"].startswith("process")


def test_no_isolation_only_on_demand() -> None:
    assert "allow_unsafe" in hello(isolation="none")["unavailable"]
    unsafe = hello(isolation="none", allow_unsafe=True)
    assert unsafe["level"] == "none"
    assert unsafe["trusted"] is False


def test_an_asked_for_level_that_is_missing_says_why() -> None:
    message = hello(isolation="bwrap", refuse=["namespaces"])["unavailable"]
    assert "bwrap" in message
    assert len(json.dumps(message)) < 2000
