"""Dataset types of building tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import Conversion, id_of, lines_of, text_of
from marl_ray.data.loading import DataRow
from marl_ray.data.row_fields import list_of, value_of
from marl_ray.plugins.builder.commands import AIR, MAX_POSITIONS
from marl_ray.plugins.builder.glyphs import EMPTY, FULL, drawing
from marl_ray.plugins.builder.prompts import house_task, word_task


def _word(row: DataRow, number: int) -> Task:
    """Convert a row with `string`, a word that is drawn in letters of five by five positions, or `target`, a list of
    rows of `#` and `.` from top to bottom."""
    task_id = id_of(row, "word_builder", number)
    rows = lines_of(row, "target")
    word = text_of(row, "string").strip()
    if not rows and not word:
        raise UserError(f"task {task_id} has no word (field string) and no drawing (field target)")
    try:
        rows = rows or drawing(word)
    except KeyError as error:
        raise UserError(f"task {task_id}: there is no drawing of {error.args[0]!r} in {word!r}") from None
    widths = set(map(len, rows))
    marks = set("".join(rows))
    if len(widths) != 1 or not marks <= {EMPTY, FULL}:
        raise UserError(f"task {task_id}: target needs rows of equal length with {FULL} and {EMPTY}")
    if FULL not in marks:
        raise UserError(f"task {task_id}: the drawing has no {FULL}")
    _check_size(task_id, len(rows) * len(rows[0]))
    return Task(task_id, word_task(rows), {"target": rows})


def _house(row: DataRow, number: int) -> Task:
    """Convert a row with `inventory` (blocks by letter), `layers` or `target_spec.layers` (a list of objects with the
    height `y`, from 0, and `rows`), and optionally `attack` (0 to 1)."""
    task_id = id_of(row, "house_builder", number)
    inventory: Any = value_of(row, "inventory", task_id)
    spec: Any = value_of(row, "target_spec", task_id)
    layers = list_of(spec if isinstance(spec, Mapping) else row, "layers", task_id)
    if not isinstance(inventory, Mapping) or not inventory or not layers:
        raise UserError(f"task {task_id} needs inventory (blocks by letter) and layers")
    by_height = {}
    for layer in layers:
        if isinstance(layer, Mapping) and isinstance(layer.get("y"), int):
            by_height[layer["y"]] = lines_of(layer, "rows")
    if sorted(by_height) != list(range(len(layers))):
        raise UserError(f"task {task_id}: layers need the heights 0 to {len(layers) - 1} (y)")
    rows = tuple(by_height[y] for y in range(len(layers)))
    shapes = set()
    letters: set[str] = set()
    for lines in rows:
        for line in lines:
            shapes.add((len(lines), len(line)))
            letters.update(line)
    if len(shapes) != 1 or not all(rows):
        raise UserError(f"task {task_id}: all layers need the same number of rows of equal length")
    blocks = {}
    for letter, name in inventory.items():
        blocks[str(letter)] = str(name).strip().removeprefix("minecraft:")
    unknown = sorted(letters - blocks.keys())
    if unknown:
        raise UserError(f"task {task_id}: inventory has no block for {unknown[0]!r}")
    names = set(blocks.values())
    if names <= {AIR} or not all(len(name.split()) == 1 for name in names):
        raise UserError(f"task {task_id}: inventory needs names of blocks without spaces, and a block other than {AIR}")
    attack = row.get("attack") or 0
    if not isinstance(attack, int | float) or not 0 <= attack <= 1:
        raise UserError(f"task {task_id}: attack should be a number from 0 to 1")
    _check_size(task_id, len(rows) * len(rows[0]) * len(rows[0][0]))
    pairs = tuple(blocks.items())
    fields = {"layers": rows, "inventory": pairs, "attack": float(attack)}
    return Task(task_id, house_task(rows, pairs), fields)


def _check_size(task_id: str, positions: int) -> None:
    """Raise UserError if a site is too large."""
    if positions > MAX_POSITIONS:
        raise UserError(f"task {task_id} has {positions} positions, more than {MAX_POSITIONS}")


WORD_BUILDER = Conversion("word_builder", _word)
HOUSE_BUILDER = Conversion("house_builder", _house)
