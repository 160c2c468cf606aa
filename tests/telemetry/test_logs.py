"""Log records on the console and in the run's log file."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from marl_ray.telemetry import logs

LOGGER = logging.getLogger("marl_ray.test")


def test_info_is_printed_as_it_is_and_other_levels_get_a_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    LOGGER.debug("hidden")
    LOGGER.info("step 1")
    LOGGER.warning("update skipped")
    assert capsys.readouterr() == ("", "step 1\nwarning: update skipped\n")
    logs.configure(logging.DEBUG)
    LOGGER.debug("detail")
    assert capsys.readouterr().err == "debug: detail\n"


def test_configure_without_a_level_keeps_the_level_and_adds_no_second_handler(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure(logging.WARNING)
    logs.configure()
    LOGGER.info("step 1")
    LOGGER.warning("once")
    assert capsys.readouterr().err == "warning: once\n"


def test_progress_bars_are_disabled_below_info() -> None:
    assert logs.progress_bar_disabled() is None
    logs.configure(logging.WARNING)
    assert logs.progress_bar_disabled() is True


def test_the_log_file_has_every_level_with_a_timestamp_and_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    logs.configure(logging.WARNING)
    for text in ("first", "second"):
        with logs.log_file(path):
            LOGGER.debug(text)
    LOGGER.info("after the run")
    first, second = path.read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} DEBUG marl_ray\.test: first", first)
    assert second.endswith("DEBUG marl_ray.test: second")


def test_a_log_file_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with logs.log_file(tmp_path / "missing" / "run.log"):
        LOGGER.info("step 1")
    assert capsys.readouterr().err == "step 1\n"


def test_a_python_program_prints_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("marl_ray.test")
    logs.configure(logging.WARNING)
    with logs.python_output(verbose=False, progress=True):
        logger.error("silent")
        assert logs.progress_bar_disabled() is False
    with logs.python_output(verbose=True, progress=False):
        logger.info("verbose")
        assert logs.progress_bar_disabled() is True
    logger.info("the level of before")
    assert capsys.readouterr().err == "verbose\n"
    assert logs.progress_bar_disabled() is True
