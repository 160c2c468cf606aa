"""Choice of the level: by trying, weaker step by step as the kernel refuses features, and never silently."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from tests.sandbox.attacks.level_suite import Host

CORRECT = {"program": "def f(x):\n    return x + 1\n", "tests": ["assert f(1) == 2"], "entry_point": "f"}


def start_host(**options: Any) -> dict[str, Any]:
    """Return the first answer of a host process, which must also run a correct program and end cleanly."""
    host = Host(options)
    try:
        if "unavailable" not in host.startup:
            report = host.run([CORRECT])["reports"][0]
            assert report["passed"] == 1
            assert report["isolation"] == host.startup["level"]
            host.startup["trusted"] = report["trusted"]
            assert host.close()["processes"] == 0
        return host.startup
    finally:
        host.kill()


def test_auto_selects_the_strongest_level() -> None:
    best = start_host(isolation="auto")["level"]
    expected = "bwrap" if shutil.which("bwrap") and "level" in start_host(isolation="bwrap") else None
    assert best == expected or (expected is None and best in ("process+landlock", "process"))


def test_auto_degrades_with_the_features_that_the_kernel_refuses() -> None:
    first = start_host(isolation="auto", refuse=["namespaces"])
    if first.get("level") != "process+landlock":
        pytest.skip(f"no Landlock on this kernel: {first}")
    second = start_host(isolation="auto", refuse=["namespaces", "landlock"])
    assert second["level"] == "process"
    third = start_host(isolation="auto", refuse=["namespaces", "landlock", "seccomp"])
    assert "seccomp" in third["unavailable"]
    for answer, missing in ((first, "bwrap"), (second, "landlock")):
        assert missing in answer["describe"].lower(), answer
        assert "\n" not in answer["describe"].strip()


def test_no_level_is_available_without_seccomp() -> None:
    for isolation in ("auto", "bwrap", "process"):
        assert "unavailable" in start_host(isolation=isolation, refuse=["seccomp"]), isolation


def test_require_prevents_a_weaker_level() -> None:
    refused = start_host(isolation="auto", require="bwrap", refuse=["namespaces"])
    assert "bwrap" in refused["unavailable"]
    kept = start_host(isolation="auto", require="process", refuse=["namespaces"])
    assert kept["level"].startswith("process")


def test_level_none_needs_allow_unsafe() -> None:
    assert "allow_unsafe" in start_host(isolation="none")["unavailable"]
    unsafe = start_host(isolation="none", allow_unsafe=True)
    assert unsafe["level"] == "none"
    assert unsafe["trusted"] is False


def test_a_missing_level_is_reported_with_its_reason() -> None:
    message = start_host(isolation="bwrap", refuse=["namespaces"])["unavailable"]
    assert "bwrap" in message
    assert len(json.dumps(message)) < 2000
