"""Rows of a dataset by name and split: bundled with the package, in a local file, or on the hub.

A split is a name with an optional slice, as in `datasets`: `test`, `test[33:163]`, `test[:16]`, `test[-10:]`,
`test[:10%]`, and several of them joined by `+`. A hub's dataset that has parts is named with the one that is meant:
`bigcode/humanevalpack:python`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home
from marl_ray.models.names import is_hub_id

DataRow = Mapping[str, Any]

LOCAL_SUFFIXES = (".jsonl", ".parquet")
OTHER_SUFFIXES = (".json", ".csv", ".tsv", ".txt", ".gz", ".zip", ".arrow")
"""Of files, not of hub ids."""
BUNDLED = ("bundled:toy", "bundled:toy-hard")

_SPLIT = re.compile(r"(?P<name>[\w.-]+)(\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")


def load_rows(name: str, split: str) -> list[DataRow]:
    """The rows of a split (with slices). Raises UserError when there is no such dataset, split or row."""
    splits: Mapping[str, Sequence[DataRow]]
    if name.startswith("bundled:"):
        splits = _bundled(name)
    elif name.endswith(LOCAL_SUFFIXES):
        rows = _local(expand_home(name))
        splits = {"test": rows, "train": rows}
    else:
        splits = _hub(name)
    check_dataset_name(name, [split])
    rows = [row for part in split.split("+") for row in _select(name, splits, part.strip())]
    if not rows:
        raise UserError(f"dataset {name}: split {split!r} holds no rows")
    return rows


def needs_download(name: str) -> bool:
    """Whether the dataset is on the hub."""
    return not name.startswith("bundled:") and not name.endswith(LOCAL_SUFFIXES) and not Path(name).is_dir()


def check_dataset_name(name: str, splits: Sequence[str]) -> None:
    """The forms of a name and of splits; reads nothing. Raises UserError."""
    for split in splits:
        for part in split.split("+"):
            if _SPLIT.fullmatch(part.strip()) is None:
                raise UserError(f"split {part.strip()!r} is not of the form 'test', 'test[16:]' or 'test[:10%]'")
    if not needs_download(name):
        return
    if name.startswith(("/", "./", "../", "~")) or name.endswith(OTHER_SUFFIXES) or Path(name).is_file():
        raise UserError(f"dataset {name} is no data file: such a file ends in {' or '.join(LOCAL_SUFFIXES)}")
    if not is_hub_id(name.partition(":")[0]):
        raise UserError(f"dataset {name!r} is neither a data file nor a hub id (owner/name)")


def numbered(path: Path, what: str = "data file") -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a .jsonl file, each with the number of its line, from 1; blank lines are left out. `what` is how
    an error calls the file. Raises UserError for a line that holds no object, and OSError."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode())
                json.dumps(row, ensure_ascii=False).encode()  # JSON may write \ud800, which no file and no model takes
            except UnicodeEncodeError as error:
                half = error.object[error.start : error.end]
                raise UserError(f"{what} {path}, line {number}: {half!r} is half of a character") from None
            except (ValueError, RecursionError) as error:
                raise UserError(f"{what} {path}, line {number}: not JSON ({one_line(error, 100)})") from None
            if not isinstance(row, dict):
                raise UserError(f"{what} {path}, line {number}: not a JSON object")
            yield number, row


def one_line(error: BaseException, limit: int = 300) -> str:
    """An exception as type and message on one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _select(name: str, splits: Mapping[str, Sequence[DataRow]], split: str) -> list[DataRow]:
    match = _SPLIT.fullmatch(split)
    assert match is not None, "check_dataset_name comes first"
    if match["name"] not in splits:
        there = ", ".join(splits) or "none"
        raise UserError(f"dataset {name} has no split {match['name']!r}; its splits: {there}")
    rows = splits[match["name"]]
    start = _bound(match["start"], 0, len(rows), name, split)
    stop = _bound(match["stop"], len(rows), len(rows), name, split)
    # A hub dataset's own slices give columns, so rows are taken one by one.
    return [rows[index] for index in range(start, stop)]


def _bound(text: str | None, default: int, size: int, name: str, split: str) -> int:
    if text is None:
        return default
    bound = round(size * int(text[:-1]) / 100) if text.endswith("%") else int(text)
    if abs(bound) > size:
        raise UserError(f"dataset {name}: split {split!r} reaches beyond its {size} rows")
    return bound + size if bound < 0 else bound


def _bundled(name: str) -> dict[str, list[DataRow]]:
    from marl_ray.toy import HARD_TASKS_PATH, TASKS_PATH

    if name not in BUNDLED:
        raise UserError(f"there is no dataset {name!r}; bundled with the package: {', '.join(BUNDLED)}")
    splits: dict[str, list[DataRow]] = {}
    for row in _local(TASKS_PATH if name == BUNDLED[0] else HARD_TASKS_PATH):
        splits.setdefault(str(row.get("split")), []).append(row)
    return splits


def _local(path: Path) -> list[DataRow]:
    if not path.is_file():
        folder = path.parent
        there = sorted(file.name for file in folder.glob("*") if file.suffix in LOCAL_SUFFIXES)
        beside = f"; data files in {folder}: {', '.join(there[:20]) or 'none'}" if folder.is_dir() else ""
        raise UserError(f"data file {path} does not exist{beside}")
    try:
        return _parquet(path) if path.suffix == ".parquet" else [row for _, row in numbered(path)]
    except OSError as error:
        raise UserError(f"data file {path} cannot be read: {one_line(error)}") from None


def _parquet(path: Path) -> list[DataRow]:
    import pyarrow.parquet  # with `datasets`; its own reader would leave copies in a cache

    try:
        rows: list[DataRow] = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"data file {path} is not Parquet: {one_line(error, 150)}") from None
    return rows


def _hub(name: str) -> Mapping[str, Sequence[DataRow]]:
    import datasets

    try:
        splits = datasets.load_dataset(*name.split(":", 1))
    except Exception as error:  # the hub client has no common base class of what it raises
        hint = f"; a local file ends in {' or '.join(LOCAL_SUFFIXES)}"
        raise UserError(f"dataset {name} cannot be loaded from the hub: {one_line(error)}{hint}") from None
    return dict(splits)
