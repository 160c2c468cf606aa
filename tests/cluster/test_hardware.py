"""Cluster descriptions on the command line and in files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from marl_ray.cluster.hardware import DEVICES, GIB, _match_ray_type, local_node, parse_cluster
from marl_ray.core.errors import UserError


def test_a_cluster_is_parsed_from_text() -> None:
    nodes = parse_cluster("2x8xH100-80GB")
    assert [(m.name, m.gpus) for m in nodes] == [("node 0", 8), ("node 1", 8)]
    assert nodes[0].device is DEVICES["H100-80GB"]
    assert nodes[0].resources == {"CPU": math.inf, "GPU": 8.0}
    assert parse_cluster("1x1xh100")[0].device is nodes[0].device


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2x8", "neither NODESxDEVICESxTYPE, as 2x8xH100-80GB, nor a .yaml file"),
        ("0x8xH100", "neither NODESxDEVICESxTYPE"),
        ("1x8xA100", "is ambiguous: choose one of A100-40GB, A100-80GB"),
        ("1x8xH100-80G", "did you mean H100-80GB?"),
        ("nowhere.yaml", "cannot be read"),
    ],
)
def test_invalid_text_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")) as refused:
        parse_cluster(text)
    assert "\n" not in str(refused.value)


def test_a_cluster_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(
        "nodes:\n"
        "- {cpus: 32, memory_gib: 128}\n"
        "- {count: 2, cpus: 96, memory_gib: 1024, gpus: 8, gpu: A100-80GB}\n"
        "- {gpus: 1, gpu: Ours, gpu_memory_gib: 10, gpu_tflops: 100, gpu_gb_per_s: 500}\n"
    )
    nodes = parse_cluster(str(file))
    assert [m.name for m in nodes] == ["node 0", "node 1", "node 2", "node 3"]
    assert (nodes[0].cpus, nodes[0].memory, nodes[0].gpus) == (32, 128 * GIB, 0)
    assert nodes[2].device is DEVICES["A100-80GB"]
    custom = nodes[3].device
    assert custom is not None
    assert (custom.name, custom.memory, custom.flops, custom.bandwidth) == ("Ours", 10 * GIB, 100e12, 500e9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "should have one key, nodes"),
        ("nodes: [7]", "7 is no node"),
        ("nodes: [{cpu: 4}]", "unknown key cpu: did you mean cpus"),
        ("nodes: [{cpus: many}]", "cpus should be a number"),
        ("nodes: [{gpus: 2, gpu: H300}]", "unknown device H300"),
    ],
)
def test_invalid_files_are_rejected(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        parse_cluster(str(file))


@pytest.mark.parametrize(
    ("kinds", "device"),
    [
        (["A100"], "A100-40GB"),
        (["A100-80G"], "A100-80GB"),
        (["GeForce-RTX-4090"], "RTX4090-24GB"),
        (["H200"], "H200-141GB"),
        (["V100"], None),
        ([""], None),
        ([], None),
    ],
)
def test_ray_accelerator_types_match_devices(kinds: list[str], device: str | None) -> None:
    match = _match_ray_type(kinds)
    assert (match.name if match else None) == device


def test_the_local_node_has_cores_and_limited_memory() -> None:
    node = local_node()
    assert node.cpus >= 1
    assert GIB < node.memory < math.inf
