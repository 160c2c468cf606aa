"""Rows of a file that grows, is rewritten, and is away."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from marl_ray.telemetry.growing_rows import GrowingRows


class Reader:
    """The steps of the rows that were read."""

    def __init__(self, path: Path) -> None:
        self.rows = GrowingRows(path)
        self.steps: list[int | None] = []

    def read(self) -> list[int | None]:
        """Read new rows and return all steps."""
        for placed in self.rows.read_new(self.steps.clear):
            self.steps.append(None if placed.row is None else placed.row["step"])
            assert self.rows.row(placed.offset, placed.length) == placed.row
        return self.steps


def write(path: Path, *steps: int, text: str = "") -> None:
    """Replace the file, as a resumed run does."""
    replaced = path.with_suffix(".new")
    replaced.write_text("".join(json.dumps({"step": step, "text": text}) + "\n" for step in steps), encoding="utf-8")
    replaced.replace(path)


def test_rows_are_read_once_and_a_line_without_an_end_is_read_later(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    reader = Reader(path)
    assert reader.read() == [], "before the first step"
    write(path, 1, 2)
    assert reader.read() == [1, 2]
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 3}')
        file.flush()
        assert reader.read() == [1, 2], "an object, but its line may go on"
        file.write("\n\nno object\n")
    assert reader.read() == [1, 2, 3, None, None]
    path.unlink()
    assert reader.read() == [1, 2, 3, None, None]


def test_a_rewritten_file_that_is_larger_than_before_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    reader = Reader(path)
    write(path, 1, 2, 3)
    reader.read()
    write(path, 1, 2, text="a longer text")
    assert reader.read() == [1, 2]
    write(path, 1, 2, 4, 5, text="a longer text")
    assert reader.read() == [1, 2, 4, 5], "the rows that were read are where they were"
    write(path, 1)
    assert reader.read() == [1]


def test_a_row_at_which_the_reader_fails_comes_again(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", 1, 2)
    rows = GrowingRows(tmp_path / "rows.jsonl")
    for _ in range(2):
        for placed in rows.read_new(lambda: None):
            assert placed.row == {"step": 1, "text": ""}
            break  # as an error would


def test_a_file_system_that_is_away_is_no_error_and_a_forbidden_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(tmp_path / "rows.jsonl")

    def fail(number: int) -> None:
        def open_file(path: Path, mode: str) -> None:
            raise OSError(number, "no")

        monkeypatch.setattr(Path, "open", open_file)

    fail(errno.ESTALE)
    assert reader.read() == []
    assert reader.rows.line(0, 10) == b""
    fail(errno.EACCES)
    with pytest.raises(PermissionError):
        reader.read()
