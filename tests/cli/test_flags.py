"""Flags of several commands: single settings, --version, --quiet and --verbose."""

from __future__ import annotations

import logging
import platform
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import marl_ray
from marl_ray.cli.main import main
from marl_ray.cli.train import train_main
from marl_ray.core import installed_versions as versions
from marl_ray.telemetry import logs
from marl_ray.telemetry.console_sink import ConsoleSink
from tests.factories import QUICKSTART, ROOT


def test_a_flag_takes_precedence_over_an_override(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", str(ROOT / "configs" / "mt_magrpo_he_config.yaml"), "--dry-run", "--num_turns", "1"]
    arguments += ["--num_epochs", "3", "--model_name", "a/flag", "--override", "magrpo.num_train_epochs=9"]
    arguments += ["magrpo.num_turns=2", "model_name=an/override", "model.name=another/override"]
    assert train_main("magrpo", arguments) == 0
    out, err = capsys.readouterr()
    printed = yaml.safe_load(out)
    assert printed["model"]["name"] == "a/flag"
    assert (printed["magrpo"]["num_train_epochs"], printed["magrpo"]["num_turns"]) == (3, 1)
    assert err.startswith("note: magrpo.num_turns is 1")


def test_an_invalid_flag_is_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        train_main("magrpo", ["--num_turns", "two"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err == "error: argument --num_turns: invalid int value: 'two' (see --help)\n"


def test_version_names_the_packages_that_affect_results(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--version"]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"marl-ray {marl_ray.__version__} (python {platform.python_version()}, torch ")
    assert f"ray {version('ray')}" in line
    monkeypatch.setattr(versions, "PACKAGES", {"ray": ("ray",), "not-there": ("not-there",)})
    assert versions.version_line().endswith(", not-there missing)")


def test_quiet_prints_only_warnings_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(logging.WARNING)
    logger = logging.getLogger("marl_ray.test")
    logger.info("step 1")
    logger.warning("tasks overlap")
    sink = ConsoleSink(2, 0, policies=(), num_turns=1, every=1)
    sink.row({"step": 0, "eval/turn_1/reward_mean": 1.0, "time/eval": 1.0}, "before")
    sink.close()
    assert capsys.readouterr() == ("", "warning: tasks overlap\n")


@pytest.mark.parametrize(
    ("flags", "level"), [([], logging.INFO), (["--quiet"], logging.WARNING), (["--verbose"], logging.DEBUG)]
)
def test_quiet_and_verbose_select_the_log_level(flags: list[str], level: int, tmp_path: Path) -> None:
    arguments = ["--config", str(QUICKSTART), "--dry-run", "--override", f"output.base_dir={tmp_path}"]
    assert main(["train", "magrpo", *arguments, *flags]) == 0
    assert level == logs.CONSOLE.level


def test_quiet_excludes_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["eval", "--model", "base", "--quiet", "--verbose"])
    assert "argument --verbose: not allowed with argument --quiet" in capsys.readouterr().err


def test_a_resumed_run_keeps_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_main("magrpo", ["--resume", str(tmp_path), "--override", "output.base_dir=x"]) == 1
    assert "leave out output.base_dir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "setting", "remedy"),
    [
        (["eval", "--config", str(QUICKSTART), "--model", "base"], "output.base_dir=x", "use --output"),
        (["eval", "--config", str(QUICKSTART), "--model", "base"], "output.keep_batches=true", "leave it out"),
        (["rollout", "--config", str(QUICKSTART), "--model", "base"], "output.run_name=x", "leave it out"),
    ],
)
def test_a_setting_without_effect_is_an_error(
    command: list[str], setting: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--override", setting]) == 1
    key = setting.partition("=")[0]
    assert capsys.readouterr().err == f"error: {key} has no effect on this command: {remedy}\n"
