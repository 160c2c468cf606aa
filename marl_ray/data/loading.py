"""Loading of rows and tasks by dataset name and split: bundled with the package, from a local file, or from the hub.

A split is a name with an optional slice, as in `datasets`: `test`, `test[33:163]`, `test[:16]`, `test[-10:]`,
`test[:10%]`, or several of them joined by `+`. A configuration of a hub dataset follows its id:
`bigcode/humanevalpack:python`.
"""

from __future__ import annotations

import codecs
import csv
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home
from marl_ray.core.text import pluralize
from marl_ray.data import DATASETS, SOURCES, infer_type, source_name
from marl_ray.models.names import is_hub_id
from marl_ray.registry import bundled_rows
from marl_ray.toy import ROWS

if TYPE_CHECKING:
    from marl_ray.data.convert import DatasetType

DataRow = Mapping[str, Any]
logger = logging.getLogger(__name__)

LOCAL_SUFFIXES = (".jsonl", ".parquet", ".json", ".csv")
_ENDINGS = f"{', '.join(LOCAL_SUFFIXES[:-1])} or {LOCAL_SUFFIXES[-1]}"
OTHER_SUFFIXES = (".tsv", ".txt", ".gz", ".zip", ".arrow")
"""Suffixes of files, which no hub id has."""
MAX_BAD_SHARE = 0.05
"""Maximum share of a dataset's rows that may be left out because they cannot be read."""
LISTED_ROWS = 5
"""Maximum rows in one message."""

_SPLIT = re.compile(r"(?P<name>[\w.-]+)(\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")


class UnsupportedRow(UserError):
    """A correct row of a kind that the dataset type does not support. It is no bad row."""


def load_tasks(
    name: str, split: str, dataset_type: str | None = None, on_bad_row: Literal["skip", "error"] = "skip"
) -> list[Task]:
    """Return the tasks of a split (with slices) in the dataset's order.

    `name` is a hub id, the path of a .jsonl, .parquet, .json or .csv file (with the single split `test`, also called
    `train`), or bundled with the package. Rows that are no tasks are treated as `DatasetConfig.on_bad_row` says.
    """
    return list(load_tasks_by_row(name, split, dataset_type, on_bad_row).values())


def load_tasks_by_row(
    name: str, split: str, dataset_type: str | None = None, on_bad_row: Literal["skip", "error"] = "skip"
) -> dict[int, Task]:
    """Return the tasks of a split by row number (index into `load_rows`), like `load_tasks`."""
    converter: DatasetType = DATASETS.get(infer_type(name) if dataset_type is None else dataset_type)
    rows, total = _rows_and_total(name, split)
    tasks: dict[int, Task] = {}
    rows_of_id: dict[str, list[int]] = {}
    ids: set[str] = set()
    unsupported: list[UserError] = []
    bad: list[UserError] = []
    for number, row in enumerate(rows):
        try:
            task = converter.task(row, number)
            rows_of_id.setdefault(task.id, []).append(number)
            count = len(rows_of_id[task.id])
            free = task.id
            while free in ids:  # ids name tasks in logs and episodes; a row may have the id `ID#2` itself
                free = f"{task.id}#{count}"
                count += 1
            if free != task.id:
                task = replace(task, id=free)
            ids.add(task.id)
            tasks[number] = task
        except UserError as error:
            if on_bad_row == "error":
                raise UserError(f"dataset {name}: {error}") from None
            if isinstance(error, UnsupportedRow):
                unsupported.append(error)
            else:
                bad.append(error)
    _warn_of_shared_ids(name, split, rows_of_id)
    for errors in filter(None, (unsupported, bad)):
        listed = "; ".join(map(str, errors[:LISTED_ROWS]))
        if len(errors) > LISTED_ROWS:
            listed += f"; and {len(errors) - LISTED_ROWS} more"
        left_out = f"dataset {name}: {len(errors)} of {pluralize(len(rows), 'row')} of {split!r}"
        if errors is bad and len(bad) > MAX_BAD_SHARE * total:
            raise UserError(
                f"{left_out} cannot be read, more than {MAX_BAD_SHARE:.0%} of the {pluralize(total, 'row')} of the "
                f"dataset: {listed}. Correct or remove these rows"
            )
        if not tasks:
            raise UserError(f"{left_out} cannot be read: {listed}")
        logger.warning("%s left out: %s", left_out, listed)
    return tasks


def _warn_of_shared_ids(name: str, split: str, rows_of_id: Mapping[str, Sequence[int]]) -> None:
    shared = []
    for task_id, numbers in rows_of_id.items():
        if len(numbers) > 1:
            shared.append(
                f"{pluralize(len(numbers), 'row')} {task_id}, the first two are {numbers[0]} and {numbers[1]}"
            )
    if shared:
        listed = "; ".join(shared[:LISTED_ROWS])
        if len(shared) > LISTED_ROWS:
            listed += f"; and {pluralize(len(shared) - LISTED_ROWS, 'more id')}"
        logger.warning("dataset %s: rows of %r with one id are numbered (ID#2): %s", name, split, listed)


def load_rows(name: str, split: str) -> list[DataRow]:
    """Return the rows of a split (with slices). Raises UserError if the dataset, split or rows do not exist."""
    return _rows_and_total(name, split)[0]


def _rows_and_total(name: str, split: str) -> tuple[list[DataRow], int]:
    """Return the rows of a split (with slices), and the number of rows without slices."""
    splits: Mapping[str, Sequence[DataRow]]
    if (source := source_name(name)) is not None:
        splits = SOURCES.get(source).splits
    elif name.startswith("bundled:"):
        splits = _bundled(name)
    elif name.endswith(LOCAL_SUFFIXES):
        local = _local(expand_home(name))
        splits = {"test": local, "train": local}
    else:
        splits = _hub(name)
    check_dataset_name(name, [split])
    rows: list[DataRow] = []
    used = set()
    for part in split.split("+"):
        match = _parsed(name, splits, part.strip())
        used.add(match["name"])
        rows += _select(name, splits, match)
    if not rows:
        raise UserError(f"dataset {name}: split {split!r} holds no rows")
    return rows, sum(len(splits[part]) for part in used)


def needs_download(name: str) -> bool:
    """Return whether the dataset is on the hub."""
    if source_name(name) is not None:
        return False
    return not name.startswith("bundled:") and not name.endswith(LOCAL_SUFFIXES) and not Path(name).is_dir()


def check_dataset_name(name: str, splits: Sequence[str]) -> None:
    """Check the format of a dataset name and its splits without reading data. Raises UserError."""
    for split in splits:
        for part in split.split("+"):
            if _SPLIT.fullmatch(part.strip()) is None:
                raise UserError(f"split {part.strip()!r} is not of the form 'test', 'test[16:]' or 'test[:10%]'")
    if not needs_download(name):
        return
    if name.startswith(("/", "./", "../", "~")) or name.endswith(OTHER_SUFFIXES) or Path(name).is_file():
        raise UserError(f"dataset {name} is not a data file: data files end in {_ENDINGS}")
    if not is_hub_id(name.partition(":")[0]):
        raise UserError(f"dataset {name!r} is neither a data file nor a hub id (owner/name)")


def read_jsonl(path: Path, what: str = "data file") -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a .jsonl file with their line numbers (from 1), skipping blank lines. `what` names the file
    in errors. Raises UserError for a line without a JSON object, and OSError."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.removeprefix(codecs.BOM_UTF8).decode())
                json.dumps(row, ensure_ascii=False).encode()  # rejects lone surrogates such as \ud800
            except UnicodeEncodeError as error:
                surrogate = error.object[error.start : error.end]
                raise UserError(f"{what} {path}, line {number}: {surrogate!r} is half of a character") from None
            except (ValueError, RecursionError) as error:
                raise UserError(f"{what} {path}, line {number}: not JSON ({one_line(error, 100)})") from None
            if not isinstance(row, dict):
                raise UserError(f"{what} {path}, line {number}: not a JSON object")
            yield number, row


def one_line(error: BaseException, limit: int = 300) -> str:
    """Return type and message of an exception on one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _parsed(name: str, splits: Mapping[str, Sequence[DataRow]], split: str) -> re.Match[str]:
    match = _SPLIT.fullmatch(split)
    assert match is not None, "call check_dataset_name first"
    if match["name"] not in splits:
        raise UserError(f"dataset {name} has no split {match['name']!r}; its splits: {', '.join(splits) or 'none'}")
    return match


def _select(name: str, splits: Mapping[str, Sequence[DataRow]], match: re.Match[str]) -> list[DataRow]:
    rows = splits[match["name"]]
    start = _bound(match["start"], 0, len(rows), name, match[0])
    stop = _bound(match["stop"], len(rows), len(rows), name, match[0])
    return [rows[index] for index in range(start, stop)]  # a slice of a hub dataset has columns, not rows


def _bound(text: str | None, default: int, size: int, name: str, split: str) -> int:
    if text is None:
        return default
    bound = round(size * int(text[:-1]) / 100) if text.endswith("%") else int(text)
    if abs(bound) > size:
        raise UserError(f"dataset {name}: split {split!r} reaches beyond its {size} rows: {text} has to be within them")
    return bound + size if bound < 0 else bound


def _bundled(name: str) -> dict[str, list[DataRow]]:
    bundled = ROWS | bundled_rows()
    if name not in bundled:
        raise UserError(f"there is no dataset {name!r}; bundled with the package: {', '.join(bundled)}")
    splits: dict[str, list[DataRow]] = {}
    for row in _local(bundled[name]):
        splits.setdefault(str(row.get("split")), []).append(row)
    return splits


def _local(path: Path) -> list[DataRow]:
    if not path.is_file():
        folder = path.parent
        files = sorted(file.name for file in folder.glob("*") if file.suffix in LOCAL_SUFFIXES)
        hint = f"; data files in {folder}: {', '.join(files[:20]) or 'none'}" if folder.is_dir() else ""
        raise UserError(f"data file {path} does not exist{hint}")
    try:
        readers = {".parquet": _parquet, ".json": _json, ".csv": _csv}
        reader = readers.get(path.suffix)
        return reader(path) if reader else [row for _, row in read_jsonl(path)]
    except OSError as error:
        raise UserError(f"data file {path} cannot be read: {one_line(error)}") from None


def _json(path: Path) -> list[DataRow]:
    """Return the rows of a file with one list of objects."""
    try:
        rows = json.loads(path.read_bytes().removeprefix(codecs.BOM_UTF8).decode())
        json.dumps(rows, ensure_ascii=False).encode()  # rejects lone surrogates such as \ud800
    except (ValueError, RecursionError) as error:
        raise UserError(f"data file {path}: not JSON ({one_line(error, 100)})") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"data file {path}: not a list of JSON objects")
    return rows


def _csv(path: Path) -> list[DataRow]:
    """Return the rows of a file whose first line has the names of the fields. All values are text."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows: list[DataRow] = list(csv.DictReader(file, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"data file {path}: not CSV ({one_line(error, 100)})") from None
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise UserError(f"data file {path}, row {number}: not as many values as the first line has names")
    return rows


def _parquet(path: Path) -> list[DataRow]:
    import pyarrow.parquet  # installed with `datasets`, whose own reader would write a cache

    try:
        rows: list[DataRow] = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"data file {path} is not Parquet: {one_line(error, 150)}") from None
    return rows


def _parquet_command(name: str) -> str:
    """Return the command that downloads the hub's own conversion of a dataset to Parquet."""
    hub_id = name.partition(":")[0]
    return f"hf download --repo-type dataset --revision refs/convert/parquet {hub_id}; then set dataset.name to a file"


def _hub(name: str) -> Mapping[str, Sequence[DataRow]]:
    import datasets

    try:
        splits = datasets.load_dataset(*name.split(":", 1))
    except Exception as error:  # the hub client's errors have no common base class
        hint = f"; a local file ends in {_ENDINGS}"
        if isinstance(error, RuntimeError):  # `datasets` raises it for a dataset that is a Python script
            hint = f". For a dataset that is a script, the hub often has its rows as Parquet: {_parquet_command(name)}"
        raise UserError(f"dataset {name} cannot be loaded from the hub: {one_line(error)}{hint}") from None
    return dict(splits)
