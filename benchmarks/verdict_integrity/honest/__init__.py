"""Honest programs with tests, judged alike by plain CPython and by a scorer that works.

Each `*.txt` file holds programs of one area: a line `@@@ name [entry=NAME] [form=stdio]`, the program, a line `---` and
the tests. A paragraph of asserts is one test per line; any other paragraph is one test. The tests of a script are
pairs of input and expected output, with `===` between the two and `+++` between pairs.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parent


class Honest(NamedTuple):
    """A program without hostile intent, and its tests in the order in which they run in one namespace."""

    name: str
    program: str
    tests: tuple[str, ...]
    """Sources of tests; a script has none."""
    pairs: tuple[tuple[str, str], ...]
    """Standard input and expected output of each test of a script."""
    entry_point: str

    @property
    def area(self) -> str:
        """The file that holds the program. Programs of `numpy_arrays` need numpy."""
        return self.name.partition("/")[0]


def honest_programs() -> list[Honest]:
    """Return all programs, in a fixed order."""
    found = []
    for path in sorted(_FOLDER.glob("*.txt")):
        for block in path.read_text(encoding="utf-8").split("@@@ ")[1:]:
            header, _, rest = block.partition("\n")
            name, *options = header.split()
            settings = dict(option.split("=") for option in options)
            program, _, tests = rest.partition("\n---\n")
            is_script = settings.get("form") == "stdio"
            sources, pairs = ((), _pairs(tests)) if is_script else (_tests(tests), ())
            entry_point = "" if is_script else settings.get("entry", _entry_point(program))
            found.append(Honest(f"{path.stem}/{name}", f"{program}\n", sources, pairs, entry_point))
    return found


def _tests(text: str) -> tuple[str, ...]:
    tests: list[str] = []
    for paragraph in text.strip("\n").split("\n\n"):
        lines = paragraph.split("\n")
        tests += lines if all(line.startswith("assert ") for line in lines) else [paragraph]
    return tuple(tests)


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    parts = [pair.partition("\n===\n") for pair in text.rstrip("\n").split("\n+++\n")]
    return tuple((f"{stdin}\n", f"{stdout}\n") for stdin, _, stdout in parts)


def _entry_point(program: str) -> str:
    """Return `f`, or the first function of a program without an `f`."""
    names = [line[4:].partition("(")[0] for line in program.splitlines() if line.startswith("def ")]
    return "f" if "f" in names or not names else names[0]
