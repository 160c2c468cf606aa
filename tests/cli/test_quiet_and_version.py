"""`--version`, `--quiet`, and a request that is refused before anybody is asked."""

from __future__ import annotations

import logging
import platform
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from marl_ray.cli.main import main
from marl_ray.core import installed_versions as versions
from marl_ray.telemetry import logs
from marl_ray.telemetry.console_sink import ConsoleSink

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def test_the_version_names_what_results_depend_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--version"]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"marl-ray {version('marl-ray')} (python {platform.python_version()}, torch ")
    assert f"ray {version('ray')}" in line
    monkeypatch.setattr(versions, "PACKAGES", ("ray", "not-there"))
    assert versions.version_line().endswith(", not-there missing)")


def test_quiet_leaves_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(logging.WARNING)
    logger = logging.getLogger("marl_ray.test")
    logger.info("step 1")
    logger.warning("tasks overlap")
    shown = ConsoleSink(2, 0, policies=(), num_turns=1, every=1)
    shown.row({"step": 0, "eval/turn_1/reward_mean": 1.0, "time/eval": 1.0}, "before")
    shown.close()
    assert capsys.readouterr() == ("", "warning: tasks overlap\n")


def test_the_flag_is_heard_by_the_commands_that_speak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "train",
        "magrpo",
        "--config",
        str(QUICKSTART),
        "--dry-run",
        "--override",
        f"output.base_dir={tmp_path}",
    ]
    assert main([*arguments, "--quiet"]) == 0
    assert logs.CONSOLE.level == logging.WARNING
    assert main(arguments) == 0
    assert logs.CONSOLE.level == logging.INFO


@pytest.mark.parametrize(
    ("agent", "replicas", "says"),
    [
        ("2", "3", "there is no agent 2: this run has agents 0 to 1"),
        ("1", "0", "0 replicas: an agent has 1 to 10000 generators"),
        ("1", "3", "is not being run: only a run that goes on can be scaled"),
    ],
)
def test_a_request_that_cannot_be_done_is_refused_at_once(
    agent: str, replicas: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(QUICKSTART, tmp_path / "config.yaml")
    assert main(["scale", str(tmp_path), "--agent", agent, "--replicas", replicas]) == 1
    assert says in capsys.readouterr().err
