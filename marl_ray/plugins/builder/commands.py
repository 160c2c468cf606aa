"""Building commands: reading them from an answer, and the blocks that they leave."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import product

AIR = "air"
SETBLOCK = "setblock"
FILL = "fill"
KILL = "kill"
Position = tuple[int, int, int]
"""Coordinates x, y (height) and z, from 0."""
MAX_POSITIONS = 4096
"""Maximum positions of one building."""

_LIST_MARK = re.compile(r"^(?:[-*]+|\d+[.)])\s*")
_INTEGER = re.compile(r"[+-]?\d{1,6}")


@dataclass(frozen=True, slots=True)
class Command:
    """Blocks of one kind from one corner to the opposite one, both included."""

    low: Position
    high: Position
    block: str

    @property
    def volume(self) -> int:
        """The number of positions."""
        volume = 1
        for low, high in zip(self.low, self.high, strict=True):
            volume *= high - low + 1
        return volume


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands of one agent. `kills` counts commands against attackers, `rejected` the lines that are no command or
    break a rule."""

    placed: tuple[Command, ...]
    kills: int
    rejected: int


def read_commands(
    answer: str,
    name: str,
    blocks: Collection[str],
    size: Position,
    limit: int,
    stock: Mapping[str, int] | None = None,
) -> Commands:
    """Return the commands in an answer, one per line: `/setblock x y z block`,
    or `/fill x y z x y z block` and `/kill`.

    Rejected are blocks other than `blocks` and air, positions outside of `size`, and commands beyond `limit` or beyond
    the `stock` of a block.

    Example:
        >>> read_commands("/setblock 0 1 0 stone\\nDone!", "setblock", ["stone"], (2, 2, 1), 10).rejected
        1
    """
    placed: list[Command] = []
    kills = 0
    rejected = 0
    used: Counter[str] = Counter()
    for line in _lines(answer):
        words = line.removeprefix("/").split()
        if not words:
            continue
        if len(placed) + kills >= limit:
            rejected += 1
            continue
        if name == FILL and words[0].lower() == KILL:
            kills += 1
            continue
        command = _command(words, name, blocks, size)
        if command is None:
            rejected += 1
            continue
        if stock is not None and command.block != AIR:
            total = used[command.block] + command.volume
            if total > stock.get(command.block, 0):
                rejected += 1
                continue
            used[command.block] = total
        placed.append(command)
    return Commands(tuple(placed), kills, rejected)


def build(commands: Iterable[Command]) -> dict[Position, str]:
    """Return the blocks after all commands, in order, without air."""
    blocks = {}
    for command in commands:
        ranges = [range(low, high + 1) for low, high in zip(command.low, command.high, strict=True)]
        for x, y, z in product(*ranges):
            blocks[x, y, z] = command.block
    return {position: block for position, block in blocks.items() if block != AIR}


def _lines(answer: str) -> list[str]:
    """Return the lines of the first fenced block, or of the whole answer, without list marks."""
    text = answer
    parts = answer.split("```")
    if len(parts) > 2:
        text = re.sub(r"^[\w-]+[ \t]*\n", "", parts[1].strip())  # without the name of a language
    lines = []
    for line in text.splitlines():
        content = _LIST_MARK.sub("", line.strip()).strip()
        if content:
            lines.append(content)
    return lines


def _command(words: list[str], name: str, blocks: Collection[str], size: Position) -> Command | None:
    """Return the command of these words, None if it is none or breaks a rule."""
    count = 3 if name == SETBLOCK else 6
    if words[0].lower() != name or len(words) < count + 2:
        return None
    if name == FILL and len(words) > count + 2:
        return None  # such as `replace`, which spares other blocks
    coordinates = words[1 : count + 1]
    if not all(map(_INTEGER.fullmatch, coordinates)):
        return None
    block = words[count + 1].removeprefix("minecraft:")
    if block not in {*blocks, AIR}:
        return None
    numbers = list(map(int, coordinates))
    # The last three numbers of `/setblock` are its first three.
    corners = list(zip(numbers[:3], numbers[-3:], strict=True))
    for (first, second), most in zip(corners, size, strict=True):
        if not (0 <= first < most and 0 <= second < most):
            return None
    x, y, z = map(min, corners)
    far_x, far_y, far_z = map(max, corners)
    return Command((x, y, z), (far_x, far_y, far_z), block)
