"""Uses of PyTorch's private API: in one module, for one version of PyTorch."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from marl_ray.learning import torch_private
from tests.factories import ROOT

ALLOWED = {"marl_ray/learning/torch_private.py", "marl_ray/models/lora.py"}
"""Files with private names. `models/lora.py` reads `_parameters`, and is below the package of the other file."""


def test_the_pinned_and_the_installed_torch_are_the_supported_version() -> None:
    (pinned,) = re.findall(r'"torch>=([\d.]+),', (ROOT / "setup.py").read_text(encoding="utf-8"))
    assert pinned == torch_private.TORCH_VERSION, "review marl_ray/learning/torch_private.py"
    assert torch.__version__.startswith(f"{pinned}."), "review marl_ray/learning/torch_private.py"


def test_no_other_module_uses_private_names() -> None:
    private = re.compile(
        r"\btorch(\.\w+)*\._[a-z]\w+\(|from torch(\.\w+)*\._"
        r"|(?<!self)\._(cdata|version\b|schema\.|overloadpacket|local_tensor)"
        r"|\b(module|model)\._(parameters|buffers)\b|tensor\._spec|_fsdp_|\._last_lr"
    )
    files = (ROOT / "marl_ray").rglob("*.py")
    users = {str(path.relative_to(ROOT)) for path in files if private.search(path.read_text(encoding="utf-8"))}
    assert users == ALLOWED


def test_kernels_for_many_tensors() -> None:
    targets, sources = [torch.zeros(2), torch.zeros(3)], [torch.ones(2), 4 * torch.ones(3)]
    torch_private.copy_all(targets, sources)
    torch_private.divide_all(targets, 2)
    assert [tensor.tolist() for tensor in targets] == [[0.5, 0.5], [2.0, 2.0, 2.0]]


def test_facts_about_tensors_and_operators() -> None:
    tensor, other = (torch.empty(4, device="meta") for _ in range(2))
    assert torch_private.storage_key(tensor) == torch_private.storage_key(tensor[1:])
    assert torch_private.storage_key(tensor) != torch_private.storage_key(other)
    before = torch_private.change_count(tensor)
    tensor.add_(1)
    assert torch_private.change_count(tensor) == before + 1
    assert torch_private.packet_of(torch.ops.aten.mm.default) is torch.ops.aten.mm
    assert torch_private.changes_arguments(torch.ops.aten.add_.Tensor)
    assert not torch_private.changes_arguments(torch.ops.aten.add.Tensor)


def test_the_number_of_the_gpu_is_an_argument_of_exported_tensors() -> None:
    arguments = list(inspect.signature(rebuild_cuda_tensor).parameters)
    assert arguments[torch_private.DEVICE_ARGUMENT] == "storage_device"


def test_parts_of_modules_and_schedules() -> None:
    module = torch.nn.BatchNorm1d(3)
    plain: dict[str, Any] = torch_private.parameters_of(module)
    plain["weight"] = torch.zeros(3)
    torch_private.buffers_of(module)["running_mean"] = torch.full((3,), 7.0)
    assert module.weight.tolist() == [0.0] * 3
    assert module.running_mean is not None
    assert module.running_mean.tolist() == [7.0] * 3
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    torch_private.set_last_rates(schedule, [0.25])
    assert schedule.get_last_lr() == [0.25]


def test_leaves_of_containers() -> None:
    assert torch_private.tree_leaves({"a": [1, (2,)], "b": 3}) == [1, 2, 3]
    assert torch_private.tree_map_only(int, lambda n: n + 1, [1, "x"]) == [2, "x"]


@pytest.mark.slow
def test_shards_of_models_and_tensors(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        module = torch.nn.Linear(2, 2)
        fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        states = list(torch_private.fsdp_parameters(module))
        assert len(states) == 2
        for state in states:
            torch_private.discard_unsharded_gradient(state)
            state.reset_sharded_param()
        weight = module.weight
        assert isinstance(weight, DTensor)
        assert torch_private.shard_of(weight) is torch_private.shard_of(weight)
        copied = torch_private.with_shard(weight, torch.ones(2, 2))
        assert isinstance(copied, DTensor)
        assert copied.full_tensor().tolist() == [[1.0, 1.0], [1.0, 1.0]]
    finally:
        dist.destroy_process_group()
