"""Actors use the device that they were given, or refuse to start."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from marl_ray.actors.engine_environment import engine_environment
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.learner_environment import learner_environment
from marl_ray.cluster.placement_plan import AgentPlacement
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning import device
from marl_ray.learning.device import choose_device
from tests.actors.helpers import learner_arguments

NO_GPU, SHARED = AgentPlacement(0.0, 0.0, "store"), AgentPlacement(1.0, 1.0, "ipc", 0)


def test_a_driver_too_old_for_cuda_is_one_line_with_both_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12040). Please update it.")

    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 2024\nGCC version:\n")
    monkeypatch.setattr(device, "DRIVER_FILE", driver)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", fail)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert choose_device(on_gpu=False).type == "cpu"
    with pytest.raises(UserError) as caught:
        choose_device(on_gpu=True)
    expected = (
        r"this actor has a GPU, but CUDA does not start \(The NVIDIA driver on your system is too old \(found version "
        r"12040\)\): NVIDIA driver 550\.54\.15, PyTorch \S+ for CUDA 13\.0\. Install a driver .*"
    )
    assert re.fullmatch(expected, str(caught.value))


def test_a_machine_without_a_driver_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device, "DRIVER_FILE", tmp_path / "missing")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no NVIDIA driver, PyTorch"):
        choose_device(on_gpu=True)


def test_actors_without_gpus_see_none() -> None:
    for environment in (engine_environment(1, False, True, False), learner_environment(1, NO_GPU)):
        assert environment["CUDA_VISIBLE_DEVICES"] == ""
    for environment in (engine_environment(1, True, True, False), learner_environment(1, SHARED)):
        assert "CUDA_VISIBLE_DEVICES" not in environment


def test_pinned_buffers_of_learners_are_not_rounded_to_powers_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    assert learner_environment(1, SHARED)["PYTORCH_ALLOC_CONF"] == "pinned_max_round_threshold_mb:1"
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.setenv(name, f"backend:native,pinned_max_round_threshold_mb:{len(name)}")
        expected = f"pinned_max_round_threshold_mb:1,backend:native,pinned_max_round_threshold_mb:{len(name)}"
        assert learner_environment(1, SHARED)["PYTORCH_ALLOC_CONF"] == expected, "the user's own settings come last"


def test_only_memory_that_is_not_exported_is_in_expandable_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    alone = learner_environment(1, AgentPlacement(1.0, 1.0, "nccl"))
    assert alone["PYTORCH_ALLOC_CONF"] == "pinned_max_round_threshold_mb:1,expandable_segments:True"
    assert "expandable_segments" not in learner_environment(1, SHARED)["PYTORCH_ALLOC_CONF"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_learner_does_not_train_on_the_cpu_in_place_of_its_gpu(ranks: int) -> None:
    arguments = learner_arguments(ranks=ranks)._replace(on_gpu=True)
    with pytest.raises(UserError, match="this actor has a GPU, but CUDA does not start"):
        LearnerActor(ActorId("learner", PolicyId((0,))), arguments).start()


def test_ray_leaves_the_devices_of_actors_without_gpus_alone() -> None:
    """Check the reason for the variable: by default Ray sets the visible devices only of actors with a GPU."""
    ray = importlib.util.find_spec("ray")
    assert ray is not None
    assert ray.origin is not None
    source = Path(ray.origin).with_name("_private") / "utils.py"
    assert "if not override_on_zero and len(accelerator_ids) == 0:\n            continue" in source.read_text()
