"""Commands in unusual circumstances: another Python, a closed pipe, a signal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marl_ray.cli.parser import REQUIRED, exit_code_of
from tests.factories import ROOT

CONFIG = str(ROOT / "configs" / "quickstart.yaml")


@pytest.mark.plugins("planner")
@pytest.mark.parametrize(
    "entry",
    [
        ["-m", "marl_ray.train_magrpo", "--config", CONFIG],
        ["-m", "marl_ray", "plan", "magrpo", "--config", CONFIG],
        [str(ROOT / "marl_ray" / "train_magrpo.py"), "--config", CONFIG],
    ],
    ids=["module", "command", "script"],
)
def test_a_python_without_the_packages_is_reported(entry: list[str], tmp_path: Path) -> None:
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONPATH": str(ROOT)}
    bare = [sys.executable, "-S", *entry]  # without site-packages
    ended = subprocess.run(bare, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"error: {sys.executable} (Python ")
    assert ended.stderr.count("\n") == 1
    assert ": use .venv/bin/python, which install.sh creates" in ended.stderr
    assert ended.stderr.split(" has no module ")[1].split(":")[0] in REQUIRED


def test_required_modules_are_the_requirements_of_setup() -> None:
    """Compare by import names."""
    listed = re.search(r"^CORE = \[(.*?)^\]", (ROOT / "setup.py").read_text(), re.DOTALL | re.MULTILINE)
    assert listed is not None
    packages = re.findall(r'"([\w-]+)', listed[1])
    assert sorted(REQUIRED) == sorted("yaml" if name == "pyyaml" else name for name in packages)


def test_a_missing_module_of_a_plugin_propagates() -> None:
    def plugin() -> None:
        import no_such_module  # noqa: F401

    with pytest.raises(ModuleNotFoundError):
        exit_code_of(plugin)


@pytest.mark.plugins("planner")
@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["--version"],
        ["explain", "magrpo"],
        ["plan", "magrpo", "--config", CONFIG],
        ["sandbox", "--help"],
        ["sandbox", "doctor"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_closed_pipe_is_no_error(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        program = [sys.executable, "-m", "marl_ray", *command]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        ended = subprocess.run(
            program, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120, cwd=ROOT, env=environment
        )
    finally:
        os.close(writing)
    assert ended.returncode == 0
    assert "Error" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


def test_a_deleted_working_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert exit_code_of(os.getcwd) == 1
    assert capsys.readouterr().err == "error: the working folder has been deleted: change to an existing folder\n"


@pytest.mark.parametrize("swallow", [False, True], ids=["raised", "turned into an error by an import"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_command_has_the_exit_code_of_its_signal(number: int, swallow: bool) -> None:
    def command() -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            if swallow:
                raise ImportError("a partly initialised module") from None
            raise

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert exit_code_of(command) == 128 + number
    finally:
        signal.signal(signal.SIGINT, before)
