"""Forging programs: the files in `programs/`, the answers that no program can know, and the tests that ask for them.

A forging program tries to pass tests without the answers. The tests ask for random answers, drawn per run, which only
the tests contain. An honest computation can therefore pass none of the tests, and every pass is forged.

A file in `programs/` holds an introduction and then records of this form; the two last sections are optional:

    === CLASS / NAME | KIND OF ANSWERS
    The mechanism in one sentence.
    --- before
    a program that the scorer scores first, in the same process and with the same tests
    ---
    the program
    --- tests KIND OF ANSWERS
    assert lines in which @1@, @2@ and @3@ are answers; a line with # stands for three lines, # being 1, 2 and 3

Without assert lines, the tests are `f(1) == ANSWER`, `f(2) == ANSWER` and `f(3) == ANSWER`, or, for the kind "script",
three pairs of standard input and output.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Job = dict[str, Any]
"""A program with tests in the forms that scorers need: see `calls`, `asserts`, `script` and `unittest`."""

YES = """
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
"""
"""The class that programs may use without a definition."""

_PROGRAMS = Path(__file__).with_name("programs")
_RECORD = re.compile(r"^=== (?P<label>.+?) / (?P<name>.+) \| (?P<kind>\w+)\n(?P<explanation>.*)\n", re.MULTILINE)
_SECTION = re.compile(r"^---(?: (before|tests \w+))?\n", re.MULTILINE)


def _word(rng: random.Random) -> str:
    return f"w{rng.getrandbits(32):08x}"


def _number(rng: random.Random) -> int:
    return rng.randrange(10**6, 10**9)


_ANSWERS: dict[str, Callable[[random.Random], Any]] = {
    "word": _word,
    "number": _number,
    "real": lambda rng: _number(rng) / 1024,
    "numbers": lambda rng: [_number(rng) for _ in range(3)],
    "reals": lambda rng: [_number(rng) / 1024 for _ in range(2)],
    "words": lambda rng: [_word(rng) for _ in range(2)],
    "pair": lambda rng: (_number(rng), _word(rng)),
    "table": lambda rng: {_word(rng): _number(rng) for _ in range(2)},
    "group": lambda rng: {_number(rng) for _ in range(3)},
}


@dataclass(frozen=True)
class Forgery:
    """A program that tries to get a pass, and tests that ask for answers which the program cannot know."""

    label: str
    """The class of the mechanism."""
    name: str
    explanation: str
    source: str
    kind: str
    """Kind of the answers: a key of `_ANSWERS`, or "script"."""
    tests: str = ""
    """Assert lines or unittest classes; empty for tests that call `f` and compare."""
    before: str = ""
    """A program that the scorer scores first, in the same process and with the same tests."""

    def job(self, seed: int) -> Job:
        """Return the program and its tests, with answers drawn from `seed` and the name."""
        rng = random.Random(f"{seed} {self.label} {self.name}")
        job: Job = {"name": f"{self.label} / {self.name}", "label": self.label}
        job |= {"program": self.source, "before": self.before, "entry": "f"}
        if self.kind == "script":
            return job | script([(f"{index}\n", f"{_word(rng)}\n") for index in (1, 2, 3)])
        answers = [_ANSWERS[self.kind](rng) for _ in range(3)]
        if not self.tests:
            return job | calls([([index], answer) for index, answer in enumerate(answers, 1)])
        text = self.tests if "unittest" in self.tests else "\n".join(map(_expand, self.tests.splitlines()))
        for index, answer in enumerate(answers, 1):
            text = text.replace(f"@{index}@", repr(answer))
        return job | (
            unittest(text) if "unittest" in text else asserts([line.replace("\\n", "\n") for line in text.splitlines()])
        )


FILES = tuple(sorted(_PROGRAMS.glob("*.txt")))


def load(files: Sequence[Path] = FILES) -> list[Forgery]:
    """Read forging programs. Raises ValueError for a record that cannot be read."""
    found = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        records = list(_RECORD.finditer(text))
        ends = [record.start() for record in records[1:]] + [len(text)]
        found += [_read(record, text[record.end() : end]) for record, end in zip(records, ends, strict=True)]
    return found


def _read(record: re.Match[str], body: str) -> Forgery:
    first, *sections = _SECTION.split(body)
    parts = dict(zip(sections[::2], sections[1::2], strict=True))
    if first or None not in parts:  # type: ignore[comparison-overlap]
        raise ValueError(f"{record['label']} / {record['name']}: the section '---' is missing")
    kind, tests = record["kind"], ""
    for title, section in parts.items():
        if title and title.startswith("tests "):
            kind, tests = title.removeprefix("tests "), section
    source, before = (_with_yes(parts.get(title, "")) for title in (None, "before"))  # type: ignore[call-overload]
    return Forgery(record["label"], record["name"], record["explanation"], source, kind, tests.strip(), before)


def _with_yes(source: str) -> str:
    source = source.rstrip("\n") + "\n" if source else ""
    return YES + source if re.search(r"\bYes\b", source) else source


def _expand(line: str) -> str:
    return "\n".join(line.replace("#", str(index)) for index in (1, 2, 3)) if "#" in line else line


def calls(cases: Sequence[tuple[list[Any], Any]]) -> Job:
    """Return tests that call `f` with arguments and compare the result."""
    lines = [f"assert f({', '.join(map(repr, arguments))}) == {expected!r}" for arguments, expected in cases]
    return {"kind": "calls", "cases": [repr(case) for case in cases], "asserts": lines}


def asserts(lines: Sequence[str]) -> Job:
    """Return tests that are sources with assert statements."""
    return {"kind": "asserts", "asserts": list(lines)}


def script(pairs: Sequence[tuple[str, str]]) -> Job:
    """Return tests that are pairs of standard input and expected output."""
    return {"kind": "script", "pairs": [list(pair) for pair in pairs]}


def unittest(suite: str) -> Job:
    """Return tests that are the source of unittest classes."""
    return {"kind": "unittest", "suite": suite}
