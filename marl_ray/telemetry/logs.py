"""Logging of the package: console lines for users, and a log file in the run folder.

Modules log with `logging.getLogger(__name__)`. Levels: DEBUG for details, INFO for progress, WARNING for problems that
do not end the run. Until `configure` is called, Python's default applies: warnings on standard error.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class ConsoleHandler(logging.Handler):
    """Prints records on standard error above the progress bar. Levels other than INFO get a prefix: `warning: ...`."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            prefix = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
            tqdm.write(prefix + text, file=sys.stderr)
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


def configure(level: int | None = None) -> None:
    """Print the package's log records on standard error from `level` on (default: that of an earlier call, or INFO)."""
    if CONSOLE not in ROOT.handlers:
        CONSOLE.setLevel(logging.INFO)
        ROOT.addHandler(CONSOLE)
        ROOT.setLevel(logging.DEBUG)
    if level is not None:
        CONSOLE.setLevel(level)


@contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Append log records of every level to `path` within the block."""
    handler = RunLogHandler(path)
    ROOT.addHandler(handler)
    try:
        yield
    finally:
        ROOT.removeHandler(handler)
        with suppress(OSError):
            handler.close()


def progress_bar_disabled() -> bool | None:
    """Return tqdm's `disable`: True if INFO records are not printed, else None (a bar on terminals only)."""
    return None if CONSOLE in ROOT.handlers and CONSOLE.level <= logging.INFO else True
