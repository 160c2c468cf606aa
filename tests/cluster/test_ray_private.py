"""Ray's private names: in one module, for one version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import ray

from marl_ray.cluster import ray_private
from marl_ray.cluster.ray_connection import local_gpus

ROOT = Path(__file__).resolve().parents[2]


def test_they_are_for_the_ray_that_is_pinned_and_installed() -> None:
    (pinned,) = re.findall(r'"ray(?:\[\w+\])?==([\d.]+)"', (ROOT / "setup.py").read_text())
    assert ray_private.RAY_VERSION == pinned == ray.__version__, "read marl_ray/cluster/ray_private.py again"


def test_nothing_else_uses_them() -> None:
    private = re.compile(r"\bray\._|[(, ]_node_ip_address|RAY_ENABLE_|__ray_call__|\._actor_id")
    found = {
        str(path.relative_to(ROOT)): private.findall(path.read_text()) for path in (ROOT / "marl_ray").rglob("*.py")
    }
    assert {path for path, names in found.items() if names} == {"marl_ray/cluster/ray_private.py"}


def test_gpus_that_are_hidden_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local_gpus() == 0


def test_of_a_raylet_that_died_nothing_is_printed_by_ray(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = ray_private.worker
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)
    ray_private.silence_crash_logs()
    said = {"job": None, "is_err": True, "ip": None, "pid": "raylet", "actor_name": None, "task_name": None}
    node = "The node with node id: 11 and address: 10.0.0.2 has been marked dead because the detector has missed"
    for line in (node, "Raylet is terminated. Termination is unexpected.", "no room to spill"):
        worker.print_to_stdstream(said | {"lines": [line]}, ignore_prefix=False)
    printed = "".join(capsys.readouterr())
    assert printed.count("\n") == 1
    assert "no room to spill" in printed
