"""Logging of the package: console lines for users, and a log file in the run folder.

Modules log with `logging.getLogger(__name__)`. Levels: DEBUG for details, INFO for progress, WARNING for problems that
do not end the run. Until `configure` is called, Python's default applies: warnings on standard error.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marl_ray.telemetry.terminal import is_terminal, wrap

with warnings.catch_warnings(action="ignore"):  # in a notebook without ipywidgets, the bar is text
    from tqdm.auto import tqdm

FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


TERMINAL = "terminal_text"
"""Attribute of log records that have another text for terminals."""


def for_terminal(text: str) -> dict[str, str]:
    """Return the argument `extra` of a log call whose text on terminals is this one."""
    return {TERMINAL: text}


class ConsoleHandler(logging.Handler):
    """Prints records on standard error above the progress bar. Levels other than INFO get a prefix: `warning: ...`.

    A record may have another text for terminals (`for_terminal`); an empty one is not printed there.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            if record.levelno != logging.INFO:
                text = f"{record.levelname.lower()}: {text}"
            if is_terminal():
                text = getattr(record, TERMINAL, wrap(text))
                if not text:
                    return
            tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class RunLogHandler(logging.FileHandler):
    """Appends records of every level, with timestamps, to a file that is created with the first record.

    A record that cannot be written is dropped: a full disk must not hide the run's own error.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter(FILE_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # from opening the file
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


ROOT = logging.getLogger("marl_ray")
CONSOLE = ConsoleHandler()
_progress: bool | None = None  # whether a Python program asks for a progress bar; None in commands


def configure(level: int | None = None) -> None:
    """Print the package's log records on standard error from `level` on (default: that of an earlier call, or INFO)."""
    if CONSOLE not in ROOT.handlers:
        CONSOLE.setLevel(logging.INFO)
        ROOT.addHandler(CONSOLE)
        ROOT.setLevel(logging.DEBUG)
    if level is not None:
        CONSOLE.setLevel(level)


def show(text: str) -> None:
    """Print a text on the console that is no record of the log file, where INFO records are printed."""
    if CONSOLE in ROOT.handlers and CONSOLE.level <= logging.INFO:
        tqdm.write(text, file=sys.stderr)
        sys.stderr.flush()


@contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Append log records of every level to `path` within the block."""
    handler = RunLogHandler(path)
    level = ROOT.level
    ROOT.addHandler(handler)
    ROOT.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        ROOT.setLevel(level)
        ROOT.removeHandler(handler)
        with suppress(OSError):
            handler.close()


@contextmanager
def python_output(verbose: bool, progress: bool) -> Iterator[None]:
    """Print records from INFO on if `verbose`, show progress bars if `progress`, and nothing else within the block."""
    global _progress
    before = (CONSOLE in ROOT.handlers, CONSOLE.level, ROOT.level, _progress)
    configure(logging.INFO if verbose else logging.CRITICAL + 1)
    _progress = progress
    try:
        yield
    finally:
        attached, level, root_level, _progress = before
        CONSOLE.setLevel(level)
        if not attached:
            ROOT.removeHandler(CONSOLE)
            ROOT.setLevel(root_level)


def progress_bar_disabled() -> bool | None:
    """Return tqdm's `disable`: the choice of the Python program if there is one, else True if INFO records are not
    printed, else None (a bar on terminals only)."""
    if _progress is not None:
        return not _progress
    return None if CONSOLE in ROOT.handlers and CONSOLE.level <= logging.INFO else True
