"""Building commands: reading them from an answer, and the blocks that they leave."""

from __future__ import annotations

import math
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
        return math.prod(high - low + 1 for low, high in zip(self.low, self.high, strict=True))


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands of one agent. `kills` counts commands against attackers, `rejected` the lines that are no command or
    break a rule."""

    placed: tuple[Command, ...]
    kills: int
    rejected: int


def read_commands(
    answer: str, name: str, blocks: Collection[str], size: Position, limit: int, stock: Mapping[str, int] | None = None
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
    kills = rejected = 0
    used: Counter[str] = Counter()
    for line in _lines(answer):
        words = line.removeprefix("/").split()
        if len(placed) + kills >= limit or not words:
            rejected += bool(words)
            continue
        if name == FILL and words[0].lower() == KILL:
            kills += 1
            continue
        command = _command(words, name, blocks, size)
        if command is not None and stock is not None and command.block != AIR:
            if used[command.block] + command.volume > stock.get(command.block, 0):
                command = None
            else:
                used[command.block] += command.volume
        if command is None:
            rejected += 1
        else:
            placed.append(command)
    return Commands(tuple(placed), kills, rejected)


def build(commands: Iterable[Command]) -> dict[Position, str]:
    """Return the blocks after all commands, in order, without air."""
    blocks: dict[Position, str] = {}
    for command in commands:
        xs, ys, zs = (range(low, high + 1) for low, high in zip(command.low, command.high, strict=True))
        blocks.update(dict.fromkeys(product(xs, ys, zs), command.block))
    return {position: block for position, block in blocks.items() if block != AIR}


def _lines(answer: str) -> list[str]:
    """Return the lines of the first fenced block, or of the whole answer, without list marks."""
    text = answer
    parts = answer.split("```")
    if len(parts) > 2:
        text = re.sub(r"^[\w-]+[ \t]*\n", "", parts[1].strip())  # without the name of a language
    lines: list[str] = []
    for line in text.splitlines():
        if line := _LIST_MARK.sub("", line.strip()).strip():
            lines.append(line)
    return lines


def _command(words: list[str], name: str, blocks: Collection[str], size: Position) -> Command | None:
    """Return the command of these words, None if it is none or breaks a rule."""
    count = 3 if name == SETBLOCK else 6
    if words[0].lower() != name or len(words) < count + 2 or (name == FILL and len(words) > count + 2):
        return None
    if not all(map(_INTEGER.fullmatch, words[1 : count + 1])):
        return None
    numbers = list(map(int, words[1 : count + 1]))
    block = words[count + 1].removeprefix("minecraft:")
    corners = list(zip(numbers[:3], numbers[-3:], strict=True))
    if block not in {*blocks, AIR}:
        return None
    for (first, second), most in zip(corners, size, strict=True):
        if not (0 <= first < most and 0 <= second < most):
            return None
    x, y, z = map(min, corners)
    far_x, far_y, far_z = map(max, corners)
    return Command((x, y, z), (far_x, far_y, far_z), block)
