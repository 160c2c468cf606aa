"""Uses of Ray's private API: in one module, for one version of Ray."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import ray

from marl_ray.cluster import ray_private
from tests.factories import ROOT


def test_the_pinned_and_the_installed_ray_are_the_supported_version() -> None:
    (pinned,) = re.findall(r'"ray(?:\[\w+\])?==([\d.]+)"', (ROOT / "setup.py").read_text())
    assert ray_private.RAY_VERSION == pinned == ray.__version__, "review marl_ray/cluster/ray_private.py"


def test_ray_still_gives_up_a_start_with_this_message() -> None:
    source = Path(ray_private.node.__file__).read_text(encoding="utf-8")
    assert f'raise Exception(\n                        "{ray_private.START_TIMEOUT}.' in source


def test_no_other_module_uses_private_names() -> None:
    private = re.compile(r"\bray\._|[(, ]_node_ip_address|RAY_ENABLE_|__ray_call__|\._actor_id")
    files = (ROOT / "marl_ray").rglob("*.py")
    users = {str(path.relative_to(ROOT)) for path in files if private.search(path.read_text())}
    assert users == {"marl_ray/cluster/ray_private.py"}


def test_hidden_gpus_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert ray_private.visible_gpu_count() == 0


def test_ray_prints_no_crash_logs_of_raylets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = ray_private.worker
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)
    ray_private.silence_crash_logs()
    record = {"job": None, "is_err": True, "ip": None, "pid": "raylet", "actor_name": None, "task_name": None}
    node = "The node with node id: 11 and address: 10.0.0.2 has been marked dead because the detector has missed"
    for line in (node, "Raylet is terminated. Termination is unexpected.", "no room to spill"):
        worker.print_to_stdstream(record | {"lines": [line]}, ignore_prefix=False)
    printed = "".join(capsys.readouterr())
    assert printed.count("\n") == 1
    assert "no room to spill" in printed
