"""The doors of the package: the core knows no plug-in, and works without any of them."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from marl_ray import registry
from marl_ray.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = sorted(path.parent.name for path in (ROOT / "marl_ray" / "plugins").glob("*/__init__.py"))
SMOKE = """
from marl_ray import registry
from marl_ray.cli.main import COMMANDS
from marl_ray.config import load
from marl_ray.cli.main import all_commands
from marl_ray.config.descriptions import json_schema

load("configs/quickstart.yaml", "magrpo")
schema = json_schema()
assert registry.sections().keys() <= schema["properties"].keys()
print(len(registry.plug_ins()), *all_commands())
"""


def names_in(path: Path) -> list[str]:
    """Return the modules that a file imports, and the texts in it that name a plug-in."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return [name for name in found if "marl_ray.plugins." in name or "tests.plugins." in name]


def core_files(folder: str) -> list[Path]:
    """Return the Python files of a folder outside its `plugins`."""
    plugins = ROOT / folder / "plugins"
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if plugins not in path.parents]


def test_the_core_names_no_plug_in() -> None:
    found = {str(path.relative_to(ROOT)): names for path in core_files("marl_ray") if (names := names_in(path))}
    assert found == {}


def copy_without(target: Path, plugins: list[str]) -> dict[str, str]:
    """Copy the package and its configs without these plug-ins, and return the environment to run it in."""
    for name in ("marl_ray", "configs"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in plugins:
        shutil.rmtree(target / "marl_ray" / "plugins" / name)
    return os.environ | {"PYTHONPATH": str(target)}


def test_every_plug_in_has_a_page_and_registers_itself() -> None:
    assert len(registry.plug_ins()) >= len(PLUGINS)
    for name in PLUGINS:
        page = (ROOT / "marl_ray" / "plugins" / name / "README.md").read_text(encoding="utf-8")
        assert page.startswith("# ")
        assert 5 < len(page.splitlines()) < 60


def smoke(folder: Path, plugins: list[str]) -> list[str]:
    """Load a config and all tables without these plug-ins; return the number of plug-ins and the commands."""
    environment = copy_without(folder, plugins)
    command = [sys.executable, "-c", SMOKE]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_core_works_alone(tmp_path: Path) -> None:
    number, *commands = smoke(tmp_path, PLUGINS)
    assert number == "0"
    assert commands == list(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLUGINS)
def test_the_others_work_without_a_plug_in(tmp_path: Path, name: str) -> None:
    number, *commands = smoke(tmp_path, [name])
    assert number == str(len(PLUGINS) - 1)
    assert set(COMMANDS) <= set(commands)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_core_passes_its_tests_without_any_plug_in(tmp_path: Path) -> None:
    environment = copy_without(tmp_path, PLUGINS)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path / path.name)
    for name in BESIDE:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tmp_path / "tests" / "plugins")
    command = [sys.executable, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", "-n", "2", "tests"]
    command += [f"--ignore=tests/{name}" for name in WHOLE_PACKAGE]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-5000:]


BESIDE = (".ci", ".github", "benchmarks", "constraints", "deploy", "docker", "docs", "tests", "tools")
"""Folders that tests read besides the package and its configs."""
WHOLE_PACKAGE = (
    "benchmarks",
    "sandbox",
    "test_doors.py",
    "test_docs.py",
    "test_house.py",
    "test_troubleshooting.py",
    "test_tutorials.py",
    "telemetry/test_metrics_page.py",
)
"""Tests of documents, of rules about the whole package, of benchmarks, which use plug-ins, and of the sandbox, which
imports nothing of the rest: no plug-in can change them."""


def test_the_sandbox_works_alone(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "marl_ray" / "sandbox", tmp_path / "marl_ray" / "sandbox")
    script = "from marl_ray.sandbox import Program, Sandbox\n"
    script += "program = Program('def one():\\n    return 1', ('assert one() == 1', 'assert one() == 2'), 'one')\n"
    script += "if __name__ == '__main__':\n    with Sandbox() as sandbox:\n"
    script += "        print(*[test.status for test in sandbox.run(program).tests])\n"
    (tmp_path / "alone.py").write_text(script, encoding="utf-8")
    command = [sys.executable, "alone.py"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["pass", "fail"], done.stderr


def test_an_installed_package_is_a_plug_in(tmp_path: Path) -> None:
    (tmp_path / "chess_team.py").write_text(
        'from marl_ray.registry import PlugIn\nPLUGIN = PlugIn(names={"environment": {"chess": "chess_team:Chess"}})\n',
        encoding="utf-8",
    )
    info = tmp_path / "chess_team-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chess-team\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[marl_ray.plugins]\nchess = chess_team\n", encoding="utf-8")
    script = "from marl_ray.environments import ENVIRONMENTS; print(ENVIRONMENTS.entries['chess'])"
    command = [sys.executable, "-c", script]
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "chess_team:Chess"
